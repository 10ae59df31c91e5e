//! The table of vectors, read in place: nothing is copied. `engine/data/potion-base-8m.md` has the layout.

/// Dimensions of a vector.
pub const DIMENSIONS: usize = 256;

// Not a constant: that would be copied into the metadata that every crate above this one reads.
static FILE: &[u8] = include_bytes!("../../../data/potion-base-8m.bin");
const MAGIC: &[u8; 8] = b"EVTSTAT1";
const HEADER_BYTES: usize = 20;
const SCALE_BYTES: usize = 4;
const ROW_BYTES: usize = SCALE_BYTES + DIMENSIONS;

pub struct Table {
    rows: &'static [[u8; ROW_BYTES]],
}

impl Table {
    /// The table, and its vocabulary: a token a line, in the order of the rows.
    pub fn open() -> (Table, &'static str) {
        let (header, rest) = FILE.split_at(HEADER_BYTES);
        let number = |at: usize| {
            let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
            u32::from_le_bytes(bytes) as usize
        };
        assert!(
            header.starts_with(MAGIC) && number(12) == DIMENSIONS,
            "the table in the program is another one"
        );
        let (vocabulary, rows) = rest.split_at(number(16));
        let (rows, left) = rows.as_chunks();
        assert!(rows.len() == number(8) && left.is_empty(), "the table in the program is cut off");
        (Table { rows }, std::str::from_utf8(vocabulary).expect("a vocabulary is text"))
    }

    /// Adds the vector of a token.
    pub fn add(&self, token: u16, sum: &mut [f32; DIMENSIONS]) {
        let (scale, numbers) = self.row(token);
        for (sum, byte) in sum.iter_mut().zip(numbers) {
            *sum += scale * f32::from(*byte as i8);
        }
    }

    /// The vector of a token: a factor, and signed bytes.
    pub fn row(&self, token: u16) -> (f32, &'static [u8]) {
        let row = &self.rows[usize::from(token)];
        (f32::from_le_bytes([row[0], row[1], row[2], row[3]]), &row[SCALE_BYTES..])
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use everturn_core::chain::Hash;

    #[test]
    fn the_name_of_the_model_is_of_this_table() {
        let hash = Hash::of(FILE).to_string();
        let (_, digits) = crate::model::builtin::MODEL.split_once(':').expect("a name and digits");
        assert!(hash.rsplit(':').next().is_some_and(|hash| hash.starts_with(digits)), "{hash}");
    }
}
