//! HighwayHash-64 with the key of these files.

use highway::{HighwayHash, HighwayHasher, Key};

/// "Riegeli/records\n", twice.
const KEY: Key = Key([
    0x2f69_6c65_6765_6952,
    0x0a73_6472_6f63_6572,
    0x2f69_6c65_6765_6952,
    0x0a73_6472_6f63_6572,
]);

/// The hash of `data`.
#[inline]
pub fn hash(data: &[u8]) -> u64 {
    HighwayHasher::new(KEY).hash64(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_format() {
        assert_eq!(hash(b""), 0x72c3_b1e9_c013_9fe1);
        let signature = [[0_u8; 8], 0x40_u64.to_le_bytes()].concat();
        assert_eq!(
            hash(&signature),
            u64::from_le_bytes([0x83, 0xaf, 0x70, 0xd1, 0x0d, 0x88, 0x4a, 0x3f])
        );
    }
}
