/// Where a token stands in its table. The program that makes the table uses it too.
pub fn of(token: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for &byte in token {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // The low bits alone would depend on the last bytes most.
    hash ^ (hash >> 32)
}
