//! Memory of arrays of Python, and strided copies into it.

use std::mem::MaybeUninit;
use std::slice;

use pyo3::ffi;
use pyo3::prelude::*;

/// A buffer of a Python object, held until this is dropped, which must be with the interpreter's lock.
pub struct Memory {
    // In a box, since what it points to may lie in itself.
    view: Box<ffi::Py_buffer>,
}

// SAFETY: the fields are read only, and the memory is used by tasks that the caller keeps apart.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory to write to, with any strides.
    pub fn writable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::get(object, ffi::PyBUF_STRIDES | ffi::PyBUF_WRITABLE)
    }

    /// Memory to read, in C order.
    pub fn readable(object: &Bound<'_, PyAny>) -> PyResult<Memory> {
        Memory::get(object, ffi::PyBUF_C_CONTIGUOUS)
    }

    fn get(object: &Bound<'_, PyAny>, flags: i32) -> PyResult<Memory> {
        let mut view = Box::<ffi::Py_buffer>::new_uninit();
        // SAFETY: `view` has room for what the call writes.
        let failed = unsafe {
            view.write(MaybeUninit::zeroed().assume_init());
            ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags)
        };
        if failed != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: zeroed above, and filled by the call.
        Ok(Memory { view: unsafe { view.assume_init() } })
    }

    pub fn pointer(&self) -> *mut u8 {
        self.view.buf.cast()
    }

    pub fn bytes(&self) -> usize {
        usize::try_from(self.view.len).unwrap_or(0)
    }

    pub fn itemsize(&self) -> usize {
        usize::try_from(self.view.itemsize).unwrap_or(0)
    }

    pub fn is_contiguous(&self) -> bool {
        // SAFETY: filled by PyObject_GetBuffer.
        unsafe { ffi::PyBuffer_IsContiguous(&raw const *self.view, b'C' as _) == 1 }
    }

    /// The bytes of memory in C order. Nobody may write to it meanwhile.
    pub fn content(&self) -> &[u8] {
        if self.bytes() == 0 || !self.is_contiguous() {
            return &[];
        }
        // SAFETY: the buffer has this many bytes, one behind the other.
        unsafe { slice::from_raw_parts(self.pointer(), self.bytes()) }
    }

    fn rank(&self) -> usize {
        usize::try_from(self.view.ndim).unwrap_or(0)
    }

    /// Cells along each axis.
    pub fn shape(&self) -> Vec<usize> {
        if self.rank() == 0 {
            return Vec::new();
        }
        // SAFETY: with PyBUF_STRIDES, `shape` has as many entries as there are axes.
        let shape = unsafe { slice::from_raw_parts(self.view.shape, self.rank()) };
        shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect()
    }

    /// Bytes from one cell to the next along each axis.
    pub fn strides(&self) -> Vec<isize> {
        if self.rank() == 0 {
            return Vec::new();
        }
        // SAFETY: as for `shape`.
        unsafe { slice::from_raw_parts(self.view.strides, self.rank()) }.to_vec()
    }

    /// The values of an array of int64 in C order; None if it has other items.
    pub fn int64(&self) -> Option<&[i64]> {
        if self.itemsize() != 8 || !self.pointer().cast::<i64>().is_aligned() {
            return None;
        }
        if self.bytes() == 0 {
            return Some(&[]);
        }
        // SAFETY: the buffer has this many bytes, is aligned, and any bits are an i64.
        Some(unsafe { slice::from_raw_parts(self.pointer().cast(), self.bytes() / 8) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer; the caller holds the interpreter's lock.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) }
    }
}

/// One axis of a copy: cells, and bytes from one to the next.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    pub count: usize,
    pub from: usize,
    pub to: isize,
}

/// A copy of cells, prepared once and done for many places.
#[derive(Debug)]
pub struct Copier {
    /// Axes that are not part of a run, outermost first.
    axes: Vec<Axis>,
    /// Bytes that lie together on both sides.
    run: usize,
    /// Bytes of one number whose order is reversed; 1 keeps the order.
    swap: usize,
}

impl Copier {
    /// A copy along `axes`, outermost first, of cells of `itemsize` bytes.
    pub fn new(axes: &[Axis], itemsize: usize, swap: usize) -> Copier {
        let mut axes: Vec<Axis> = axes.iter().copied().filter(|axis| axis.count != 1).collect();
        let mut run = itemsize;
        while let Some(last) = axes.last() {
            if last.from != run || last.to != run as isize {
                break;
            }
            run *= last.count;
            axes.pop();
        }
        Copier { axes, run, swap }
    }

    /// The bytes of the copy where they lie together on both sides; else None.
    pub fn run(&self) -> Option<usize> {
        (self.axes.is_empty() && self.swap <= 1).then_some(self.run)
    }

    /// Copies.
    ///
    /// # Safety
    /// All cells from `from` on must be readable, and those from `to` on writable by this thread alone.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        // SAFETY: as the caller says.
        unsafe { self.along(&self.axes, from, to) }
    }

    unsafe fn along(&self, axes: &[Axis], from: *const u8, to: *mut u8) {
        let Some((axis, inner)) = axes.split_first() else {
            // SAFETY: as the caller says.
            return unsafe { self.copy_run(from, to) };
        };
        // SAFETY: cell `k` lies on both sides, as the caller says.
        let at = |k: usize| unsafe { (from.add(k * axis.from), to.offset(k as isize * axis.to)) };
        let is_short = inner.is_empty() && self.swap <= 1;
        for (from, to) in (0..axis.count).map(at) {
            // SAFETY: as the caller says.
            unsafe {
                match self.run {
                    8..16 if is_short => copy_ends::<8>(from, to, self.run),
                    16..32 if is_short => copy_ends::<16>(from, to, self.run),
                    32..=64 if is_short => copy_ends::<32>(from, to, self.run),
                    _ => self.along(inner, from, to),
                }
            }
        }
    }

    unsafe fn copy_run(&self, from: *const u8, to: *mut u8) {
        // SAFETY: as the caller says; sizes known at compile time become single moves.
        unsafe {
            match (self.run, self.swap) {
                (run, 2..) => {
                    for number in (0..run).step_by(self.swap) {
                        for k in 0..self.swap {
                            *to.add(number + k) = *from.add(number + self.swap - 1 - k);
                        }
                    }
                }
                (1, _) => *to = *from,
                (2, _) => to.copy_from_nonoverlapping(from, 2),
                (4, _) => to.copy_from_nonoverlapping(from, 4),
                (8, _) => to.copy_from_nonoverlapping(from, 8),
                (run, _) => to.copy_from_nonoverlapping(from, run),
            }
        }
    }
}

/// Copies `size` bytes, `N` to `2 * N`, by two moves that may overlap: much less than a call costs.
///
/// # Safety
/// `size` bytes from `from` on must be readable, and from `to` on writable by this thread alone.
unsafe fn copy_ends<const N: usize>(from: *const u8, to: *mut u8, size: usize) {
    // SAFETY: both moves lie in the `size` bytes.
    unsafe {
        let first = from.cast::<[u8; N]>().read_unaligned();
        let last = from.add(size - N).cast::<[u8; N]>().read_unaligned();
        to.cast::<[u8; N]>().write_unaligned(first);
        to.add(size - N).cast::<[u8; N]>().write_unaligned(last);
    }
}

/// Rows of at least this many bytes bypass the caches when they are scattered.
const STREAMED_BYTES: usize = 1 << 10;

/// Copies a row to where nothing reads it soon.
///
/// # Safety
/// `size` bytes from `from` on must be readable, and from `to` on writable by this thread alone.
pub unsafe fn scatter(from: *const u8, to: *mut u8, size: usize) {
    #[cfg(target_arch = "x86_64")]
    if size >= STREAMED_BYTES {
        // SAFETY: as the caller says; SSE2 is part of x86_64.
        return unsafe { stream_bytes(from, to, size) };
    }
    // SAFETY: as the caller says.
    unsafe { to.copy_from_nonoverlapping(from, size) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn stream_bytes(from: *const u8, to: *mut u8, size: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const WIDE: usize = 64;
    let before = to.align_offset(WIDE).min(size);
    let lines = (size - before) / WIDE;
    let after = before + lines * WIDE;
    // SAFETY: all offsets lie below `size`; `to + before` is aligned to 64 bytes.
    unsafe {
        to.copy_from_nonoverlapping(from, before);
        for line in 0..lines {
            let at = before + line * WIDE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let values = [0, 1, 2, 3].map(|k| _mm_loadu_si128(source.add(k)));
            for (k, value) in values.into_iter().enumerate() {
                _mm_stream_si128(target.add(k), value);
            }
        }
        to.add(after).copy_from_nonoverlapping(from.add(after), size - after);
    }
}

/// Writes `first`, `first + step`, ... to where nothing reads it soon.
pub fn stream(out: &mut [i32], first: i32, step: i32) {
    let mut number = first;
    #[cfg(target_arch = "x86_64")]
    let out = if size_of_val(out) < STREAMED_BYTES {
        out
    } else {
        use std::arch::x86_64::{
            __m128i, _mm_add_epi32, _mm_set_epi32, _mm_set1_epi32, _mm_stream_si128,
        };
        let (before, rest) = out.split_at_mut(out.as_ptr().align_offset(64).min(out.len()));
        for place in before {
            *place = number;
            number = number.wrapping_add(step);
        }
        let (lines, after) = rest.as_chunks_mut::<16>();
        let each = |k: i32| number.wrapping_add(step.wrapping_mul(k));
        // SAFETY: SSE2 is part of x86_64; each line has 64 bytes and begins at a multiple of 64.
        unsafe {
            let further = _mm_set1_epi32(step.wrapping_mul(4));
            let mut four = _mm_set_epi32(each(3), each(2), each(1), number);
            for line in &mut *lines {
                let target = line.as_mut_ptr().cast::<__m128i>();
                for k in 0..4 {
                    _mm_stream_si128(target.add(k), four);
                    four = _mm_add_epi32(four, further);
                }
            }
        }
        number = number.wrapping_add(step.wrapping_mul(16 * lines.len() as i32));
        after
    };
    for place in out {
        *place = number;
        number = number.wrapping_add(step);
    }
}

/// Makes what `scatter` and `stream` wrote visible to other threads before anything that follows.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: it has no requirement but SSE, which is part of x86_64.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(count: usize, from: usize, to: isize) -> Axis {
        Axis { count, from, to }
    }

    #[test]
    fn contiguous_axes_are_one_run() {
        let copier = Copier::new(&[axis(3, 8, 8), axis(2, 4, 4), axis(1, 99, 77)], 4, 1);
        assert_eq!(copier.run(), Some(24));
        assert_eq!(Copier::new(&[axis(3, 8, 16), axis(2, 4, 4)], 4, 1).run(), None);
        assert_eq!(Copier::new(&[axis(3, 2, 2)], 2, 2).run(), None);
    }

    #[test]
    fn axes_are_transposed_and_bytes_swapped() {
        let source: Vec<u8> = (0..12).collect();
        let mut out = vec![0; 12];
        // From (3, 2) to its transpose, numbers of two bytes.
        let copier = Copier::new(&[axis(2, 2, 6), axis(3, 4, 2)], 2, 2);
        // SAFETY: both sides have 12 bytes.
        unsafe { copier.copy(source.as_ptr(), out.as_mut_ptr()) }
        assert_eq!(out, [1, 0, 5, 4, 9, 8, 3, 2, 7, 6, 11, 10]);
    }

    #[test]
    fn numbers_are_streamed_to_any_offset() {
        for offset in 0..20 {
            for size in [0, 1, 15, 255, 256, 257, 300, 1000] {
                for (first, step) in [(7, 0), (0, 1)] {
                    let mut out = vec![-1; 1100];
                    stream(&mut out[offset..offset + size], first, step);
                    fence();
                    let wanted = (0..size as i32).map(|k| first + k * step);
                    assert!(out[offset..offset + size].iter().copied().eq(wanted));
                    assert!(out[..offset].iter().all(|&number| number == -1));
                    assert!(out[offset + size..].iter().all(|&number| number == -1));
                }
            }
        }
    }

    #[test]
    fn short_runs_are_copied_alone() {
        let source: Vec<u8> = (0..200).collect();
        for run in 1..=70 {
            let mut out = vec![255; 220];
            let copier = Copier::new(&[axis(2, 90, 100), axis(run, 1, 1)], 1, 1);
            // SAFETY: both sides have room for two runs so far apart.
            unsafe { copier.copy(source.as_ptr().add(5), out.as_mut_ptr().add(7)) }
            for (k, &byte) in out.iter().enumerate() {
                let place = k.checked_sub(7).map(|k| (k / 100, k % 100));
                let copied = place.filter(|&(number, at)| number < 2 && at < run);
                let wanted = copied.map_or(255, |(number, at)| source[5 + 90 * number + at]);
                assert_eq!(byte, wanted, "byte {k} of runs of {run}");
            }
        }
    }

    #[test]
    fn scattered_bytes_are_the_same_at_any_offset() {
        let source: Vec<u8> = (0..5000u32).map(|k| (k * 7 % 251) as u8).collect();
        for offset in 0..70 {
            for size in [0, 1, 63, 64, 1023, 1024, 1025, 1500, 4000] {
                let mut out = vec![0; 5000];
                // SAFETY: both sides have 5,000 bytes.
                unsafe { scatter(source.as_ptr().add(3), out.as_mut_ptr().add(offset), size) }
                fence();
                assert_eq!(out[offset..offset + size], source[3..3 + size]);
                assert!(out[offset + size..].iter().all(|&byte| byte == 0));
            }
        }
    }
}
