/// Hash of a token, which determines its slot in the table. Also used by the program that builds the table.
pub fn of(token: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    for &byte in token {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    // The low bits alone would depend mostly on the last bytes.
    hash ^ (hash >> 32)
}
