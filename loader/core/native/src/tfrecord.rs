//! Cuts the bytes of TFRecord files into records.
//!
//! A record is framed by its length (8 bytes), the checksum of the length (4), and after the data
//! their checksum (4), all little-endian. Invariant: every record that is given out has both checksums
//! right. What is wrong with the next one is for Python to say.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::guard::guarded;

pub const LENGTH_BYTES: usize = 8;
pub const CHECKSUM_BYTES: usize = 4;
pub const HEADER_BYTES: usize = LENGTH_BYTES + CHECKSUM_BYTES;
const MASK_DELTA: u32 = 0xa282_ead8;

/// The checksum of `data` as these files have it.
pub fn masked(data: &[u8]) -> u32 {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(MASK_DELTA)
}

fn is_checksum(stored: &[u8], data: &[u8]) -> bool {
    stored == masked(data).to_le_bytes()
}

/// The data of the record that `bytes` begin with; None if it is not whole, or a checksum is wrong.
fn record(bytes: &[u8], check_data: bool) -> Option<&[u8]> {
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
    let (length, checksum) = header.split_first_chunk::<LENGTH_BYTES>()?;
    let size = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (data, rest) = rest.split_at_checked(size)?;
    let stored = rest.get(..CHECKSUM_BYTES)?;
    let is_right = is_checksum(checksum, length) && (!check_data || is_checksum(stored, data));
    is_right.then_some(data)
}

/// The records that `block` begins with, and the bytes that they take with their frames.
pub fn records(block: &[u8], check_data: bool) -> (Vec<&[u8]>, usize) {
    let (mut records, mut done) = (Vec::new(), 0);
    while let Some(data) = record(&block[done..], check_data) {
        records.push(data);
        done += HEADER_BYTES + data.len() + CHECKSUM_BYTES;
    }
    (records, done)
}

/// The records that `block` begins with, and the bytes that they take with their frames.
///
/// It ends before a record that is not whole, or has a wrong checksum.
#[pyfunction]
fn tfrecord_records<'py>(
    py: Python<'py>,
    block: &[u8],
    check_data: bool,
) -> PyResult<(Bound<'py, PyList>, usize)> {
    guarded(|| {
        let (records, done) = py.detach(|| records(block, check_data));
        let records = records.into_iter().map(|data| PyBytes::new(py, data));
        Ok((PyList::new(py, records.collect::<Vec<_>>())?, done))
    })
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(tfrecord_records, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_with_right_checksums_are_given() {
        let length = 3_u64.to_le_bytes();
        let (header, sum) = (masked(&length).to_le_bytes(), masked(b"abc").to_le_bytes());
        let frame = [&length[..], &header, b"abc", &sum].concat();
        assert_eq!(record(&frame, true), Some(&b"abc"[..]));
        for cut in 0..frame.len() {
            assert_eq!(record(&frame[..cut], true), None, "{cut}");
        }
        for at in 0..frame.len() {
            let mut wrong = frame.clone();
            wrong[at] ^= 1;
            assert_eq!(record(&wrong, true), None, "{at}");
            assert_eq!(record(&wrong, false).is_some(), at >= HEADER_BYTES, "{at}");
        }
        let huge = [&u64::MAX.to_le_bytes()[..], &[0; 20]].concat();
        assert_eq!(record(&huge, false), None);
    }
}
