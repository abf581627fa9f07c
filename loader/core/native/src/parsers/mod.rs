//! The parsers of stored bytes, each as a function of any bytes, for fuzz targets and tests.
//!
//! A function takes its numbers from the front of the bytes, makes the hashes right where damage would
//! otherwise be found before it is parsed, and panics if what the parser gives does not fit together.

mod array_record;
mod tensorflow;
mod zarr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::guard::guarded;

/// A name, which is that of a fuzz target and of its corpus, and the parser.
pub type Parser = (&'static str, fn(&[u8]));

pub const PARSERS: [Parser; 10] = [
    ("varints", array_record::varints),
    ("layout", array_record::layout),
    ("headers", array_record::headers),
    ("simple_chunks", array_record::simple_chunks),
    ("transposed_chunks", array_record::transposed_chunks),
    ("record_codecs", array_record::record_codecs),
    ("chunk_codecs", zarr::chunk_codecs),
    ("shard_index", zarr::shard_index),
    ("tfrecords", tensorflow::tfrecords),
    ("tf_examples", tensorflow::examples),
];

/// Parses `data`; false if there is no parser with this name.
pub fn parse(name: &str, data: &[u8]) -> bool {
    let found = PARSERS.iter().find(|(other, _)| *other == name);
    found.map(|(_, parser)| parser(data)).is_some()
}

/// Numbers from the front of bytes; 0 where they end.
struct Front<'a>(&'a [u8]);

impl Front<'_> {
    fn number(&mut self, bytes: usize) -> u64 {
        let (front, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        front.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    fn size(&mut self, bytes: usize) -> usize {
        self.number(bytes) as usize
    }

    fn flag(&mut self) -> bool {
        self.number(1) % 2 == 1
    }
}

/// Parses bytes, so that tests can do what fuzz targets do. A panic is a `RuntimeError`.
#[pyfunction]
fn parse_for_test(py: Python<'_>, name: &str, data: Vec<u8>) -> PyResult<()> {
    guarded(|| match py.detach(|| parse(name, &data)) {
        true => Ok(()),
        false => Err(PyValueError::new_err(format!("there is no parser {name:?}"))),
    })
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("PARSERS", PARSERS.map(|(name, _)| name).to_vec())?;
    module.add_function(wrap_pyfunction!(parse_for_test, module)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn the_corpus_of_each_parser_is_replayed() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        for (name, parser) in PARSERS {
            let files = fs::read_dir(corpus.join(name)).unwrap();
            let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
            assert!(!files.is_empty(), "{name} has no corpus");
            for file in files {
                println!("{}", file.display());
                parser(&fs::read(file).unwrap());
            }
        }
    }

    /// The same numbers in each run; see Marsaglia, "Xorshift RNGs".
    struct Draw(u64);

    impl Draw {
        fn below(&mut self, most: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 32) as usize % most.max(1)
        }

        /// The bytes with some changed, taken out or repeated.
        fn damaged(&mut self, data: &[u8]) -> Vec<u8> {
            let mut data = data.to_vec();
            for _ in 0..1 + self.below(3) {
                let at = self.below(data.len() + 1);
                let stop = data.len().min(at + 1 + self.below(8));
                match self.below(4) {
                    0 if at < stop => data[at] ^= 1 << self.below(8),
                    1 => data[at..stop].fill([0, 1, 0x7f, 0x80, 0xff][self.below(5)]),
                    2 => drop(data.drain(at..stop)),
                    _ => data.splice(at..at, data[at..stop].to_vec()).for_each(drop),
                }
            }
            data
        }
    }

    #[test]
    fn damage_to_the_corpus_panics_nowhere() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
        let rounds = std::env::var("WINDROW_DAMAGE").map_or(300, |rounds| rounds.parse().unwrap());
        for (name, parser) in PARSERS {
            let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
            let mut files: Vec<_> =
                fs::read_dir(corpus.join(name)).unwrap().map(|file| file.unwrap().path()).collect();
            files.sort();
            let files: Vec<_> = files.into_iter().map(|file| fs::read(file).unwrap()).collect();
            for _ in 0..rounds {
                let file = draw.below(files.len());
                let data = draw.damaged(&files[file]);
                let found = std::panic::catch_unwind(|| parser(&data));
                assert!(found.is_ok(), "{name}: {data:02x?}");
            }
        }
    }
}
