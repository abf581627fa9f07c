//! The global shuffle: a Feistel network over numbers of an even number of bits, for many offsets.
//!
//! The definition, and where it comes from, is in `windrow/transforms/orders.py`.

use std::slice;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::guard::guarded;
use crate::memory::Memory;

/// States that are advanced together; their halves stay in the first-level cache.
const BLOCK: usize = 1024;
/// Up to this many states are advanced one by one.
const FEW: usize = 8;
/// From this many steps on, other threads may have the interpreter's lock.
const MANY_STEPS: u64 = 1 << 17;

/// Four Feistel rounds over numbers of `2 * half_bits` bits.
struct Network {
    half_bits: u32,
    keys: [u32; 4],
}

impl Network {
    fn new(half_bits: u32, keys: [u32; 4]) -> Option<Network> {
        (8..=32).contains(&half_bits).then_some(Network { half_bits, keys })
    }

    /// The number of states less one.
    fn last(&self) -> u64 {
        u64::MAX >> (64 - 2 * self.half_bits)
    }

    /// Replaces each state by the next one on its cycle.
    fn advance(&self, states: &mut [u64]) {
        let (mut left, mut right) = ([0; BLOCK], [0; BLOCK]);
        for block in states.chunks_mut(BLOCK) {
            let (left, right) = (&mut left[..block.len()], &mut right[..block.len()]);
            for ((state, left), right) in block.iter().zip(&mut *left).zip(&mut *right) {
                (*left, *right) = self.halves(*state);
            }
            for keys in self.keys.chunks_exact(2) {
                self.mix(right, left, keys[0]);
                self.mix(left, right, keys[1]);
            }
            for ((state, left), right) in block.iter_mut().zip(&*left).zip(&*right) {
                *state = u64::from(*left) << self.half_bits | u64::from(*right);
            }
        }
    }

    fn halves(&self, state: u64) -> (u32, u32) {
        ((state >> self.half_bits) as u32, state as u32 & self.mask())
    }

    fn mask(&self) -> u32 {
        u32::MAX >> (32 - self.half_bits)
    }

    /// One round for many states.
    fn mix(&self, source: &[u32], target: &mut [u32], key: u32) {
        for (target, &half) in target.iter_mut().zip(source) {
            *target ^= self.mixed(half, key);
        }
    }

    /// What a round changes in the other half.
    fn mixed(&self, half: u32, key: u32) -> u32 {
        let rotated = |by: u32| half << by | half >> (self.half_bits - by);
        (rotated(1) & rotated(8) ^ rotated(2) ^ key) & self.mask()
    }

    /// Replaces each state below `length` by the next such state on its cycle.
    fn walk(&self, states: &mut [u64], length: u64) {
        self.advance(states);
        let mut rows: Vec<usize> = (0..states.len()).filter(|&row| states[row] >= length).collect();
        let mut walking: Vec<u64> = rows.iter().map(|&row| states[row]).collect();
        while rows.len() > FEW {
            self.advance(&mut walking);
            let mut left = 0;
            for at in 0..rows.len() {
                if walking[at] < length {
                    states[rows[at]] = walking[at];
                } else {
                    (rows[left], walking[left]) = (rows[at], walking[at]);
                    left += 1;
                }
            }
            rows.truncate(left);
            walking.truncate(left);
        }
        for (row, state) in rows.into_iter().zip(walking) {
            states[row] = self.next_below(state, length);
        }
    }

    /// The next state below `length` on the cycle of a state.
    fn next_below(&self, state: u64, length: u64) -> u64 {
        let (mut left, mut right) = self.halves(state);
        loop {
            for keys in self.keys.chunks_exact(2) {
                left ^= self.mixed(right, keys[0]);
                right ^= self.mixed(left, keys[1]);
            }
            let state = u64::from(left) << self.half_bits | u64::from(right);
            if state < length {
                return state;
            }
        }
    }
}

/// Replaces offsets by the records at them in the shuffle of `length` records.
///
/// `offsets` is an array of int64 in one dimension, each value below `length`.
#[pyfunction]
fn shuffle(
    py: Python<'_>,
    offsets: &Bound<'_, PyAny>,
    length: u64,
    half_bits: u32,
    keys: [u32; 4],
) -> PyResult<()> {
    guarded(|| {
        let memory = Memory::writable(offsets)?;
        let is_whole = memory.shape().len() == 1 && memory.strides() == [8];
        let states = memory.int64().filter(|_| is_whole);
        let network = Network::new(half_bits, keys);
        let (Some(states), Some(network)) = (states, network) else {
            return Err(PyValueError::new_err("shuffle takes int64 in a row, and 8 to 32 bits"));
        };
        if length == 0 || length - 1 > network.last() {
            return Err(PyValueError::new_err(format!("{length} records do not fit")));
        }
        if !states.iter().all(|&state| u64::try_from(state).is_ok_and(|state| state < length)) {
            return Err(PyValueError::new_err(format!("offsets must be 0 to {}", length - 1)));
        }
        let count = states.len();
        if count == 0 {
            return Ok(());
        }
        // SAFETY: the memory was asked for to be written, has this many numbers of 8 bytes, and its
        // owner lets nobody else use it during the call.
        let states = unsafe { slice::from_raw_parts_mut(memory.pointer().cast::<u64>(), count) };
        let steps = (network.last() / length + 1).saturating_mul(count as u64);
        if steps < MANY_STEPS {
            network.walk(states, length);
        } else {
            py.detach(|| network.walk(states, length));
        }
        Ok(())
    })
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(shuffle, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_record_comes_once() {
        for (half_bits, length) in [(8, 1), (8, 10), (8, 65_536), (9, 65_537), (10, 1 << 20)] {
            let network = Network::new(half_bits, [1, 0x9E37_79B9, 77, u32::MAX]).unwrap();
            let mut states: Vec<u64> = (0..length).collect();
            network.walk(&mut states, length);
            assert!(length < 10 || states != (0..length).collect::<Vec<_>>());
            states.sort_unstable();
            assert!(states.into_iter().eq(0..length));
        }
    }

    #[test]
    fn the_widest_states_are_not_cut() {
        let network = Network::new(32, [1, 2, 3, 4]).unwrap();
        assert_eq!(network.last(), u64::MAX);
        let mut states = [u64::MAX, u64::MAX - 1, 0];
        network.advance(&mut states);
        assert!(states.iter().any(|&state| state > u64::MAX >> 1));
        assert!(Network::new(33, [0; 4]).is_none() && Network::new(7, [0; 4]).is_none());
    }
}
