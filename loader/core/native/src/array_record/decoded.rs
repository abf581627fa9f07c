//! The records of a chunk in memory, which is used again for those of another chunk.

use std::mem;
use std::sync::Mutex;

use super::chunk::Verify;
use super::parallel::{Failure, Workspace};
use super::read::{Chunk, begin_of, decode};

/// Smaller memory is left to the allocator, and larger memory to the system.
const LEAST_BYTES: usize = 64 << 10;
const MOST_BYTES: usize = 16 << 20;
/// Memory that waits is not more than this, in so many pieces.
const WAITING_BYTES: usize = 32 << 20;
const WAITING: usize = 64;

/// Memory that waits, the newest last: its pages are likely in the processor's caches.
static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// The records of a chunk.
pub struct Decoded {
    bytes: Vec<u8>,
    /// Where each record ends.
    ends: Vec<usize>,
}

impl Decoded {
    /// Reads, verifies and decodes a chunk.
    pub fn read(chunk: &Chunk<'_>, verify: Verify, space: &mut Workspace) -> Result<Self, Failure> {
        let mut bytes = taken(chunk.expected_bytes);
        match decode(chunk, verify, space, &mut bytes) {
            Ok(ends) => Ok(Self { bytes, ends }),
            Err(failure) => {
                keep(bytes);
                Err(failure)
            }
        }
    }

    /// A record; `None` if there is no such record.
    pub fn record(&self, inside: usize) -> Option<&[u8]> {
        let end = *self.ends.get(inside)?;
        self.bytes.get(begin_of(&self.ends, inside)..end)
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// All records, in their order.
    pub fn records(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count()).filter_map(|inside| self.record(inside))
    }
}

impl Drop for Decoded {
    fn drop(&mut self) {
        keep(mem::take(&mut self.bytes));
    }
}

/// Memory that was used before and is about as large; empty if none waits.
fn taken(size: usize) -> Vec<u8> {
    // In a forked child the lock may be held for ever, so nobody waits for it.
    let Ok(mut spare) = SPARE.try_lock() else { return Vec::new() };
    let fits = |bytes: &Vec<u8>| (size..=size + size / 4).contains(&bytes.capacity());
    let found = spare.iter().rposition(fits).map(|at| spare.remove(at));
    found.unwrap_or_default()
}

fn keep(mut bytes: Vec<u8>) {
    if !(LEAST_BYTES..=MOST_BYTES).contains(&bytes.capacity()) {
        return;
    }
    bytes.clear();
    let Ok(mut spare) = SPARE.try_lock() else { return };
    let mut waiting = spare.iter().map(Vec::capacity).sum::<usize>() + bytes.capacity();
    spare.push(bytes);
    while waiting > WAITING_BYTES || spare.len() > WAITING {
        waiting -= spare.remove(0).capacity();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_little_waits() {
        keep(Vec::with_capacity(100_000));
        let capacity = taken(90_000).capacity();
        // Another test may take it meanwhile.
        assert!(capacity == 0 || (90_000..=112_500).contains(&capacity));
        assert_eq!(taken(3).capacity(), 0);
        (0..200).for_each(|_| keep(Vec::with_capacity(1 << 20)));
        let waiting = SPARE.lock().unwrap();
        assert!(waiting.len() <= WAITING);
        assert!(waiting.iter().map(Vec::capacity).sum::<usize>() <= WAITING_BYTES);
    }
}
