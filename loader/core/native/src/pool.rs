//! The threads of the core, and the work that they do.
//!
//! Invariants: a thread of the pool never touches Python. Work is over once each of its tasks was done
//! or left out; whoever waits for work waits without the interpreter's lock. A forked process has
//! none of its parent's threads: it starts its own, and the parent's work never ends there.

use std::cell::RefCell;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::array_record::parallel::Workspace;
use crate::codecs::Tools;
use crate::guard::{self, guarded};
use crate::turns::{Turn, Waiting};

/// Memory that is kept per thread and use; larger chunks get new memory each time.
pub const KEPT_BYTES: usize = 16 << 20;
/// How much lower the priority of the threads is than that of the thread that starts them.
#[cfg(target_os = "linux")]
const NICENESS: libc::c_int = 5;
/// How often a thread that waits sees whether it was interrupted.
const SIGNALS: Duration = Duration::from_millis(50);

/// What a thread uses again from task to task.
pub struct Scratch {
    pub stored: Vec<u8>,
    pub decoded: Vec<u8>,
    pub between: Vec<u8>,
    pub path: Vec<u8>,
    pub tools: Tools,
    /// What chunks of records are read with.
    pub records: Workspace,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch {
            stored: Vec::new(),
            decoded: Vec::new(),
            between: Vec::new(),
            path: Vec::new(),
            tools: Tools::new(),
            records: Workspace::new(),
        }
    }

    fn give_back(&mut self) {
        for memory in [&mut self.stored, &mut self.decoded, &mut self.between] {
            if memory.capacity() > KEPT_BYTES {
                *memory = Vec::new();
            }
        }
        self.records.give_back();
    }
}

/// What a task found.
pub enum Found {
    Stored,
    Missing,
}

/// The tasks of some work, by number.
pub trait Tasks: Send + Sync {
    /// Does a task; an error is the reason why it cannot be done.
    fn run(&self, task: usize, scratch: &mut Scratch) -> Result<Found, String>;
}

#[derive(Default)]
struct State {
    left: usize,
    failures: Vec<(usize, String)>,
    missing: bool,
}

/// Some tasks, each done by one thread.
pub struct Work {
    tasks: Box<dyn Tasks>,
    count: usize,
    /// Tasks that a thread takes at a time.
    step: usize,
    next: AtomicUsize,
    state: Mutex<State>,
    ended: Condvar,
    is_done: AtomicBool,
    process: u32,
}

/// A lock whose owner panicked holds a value that is right all the same: no update here can panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    pub fn new(tasks: Box<dyn Tasks>, count: usize, step: usize) -> Work {
        let state = State { left: count, ..State::default() };
        Work {
            tasks,
            count,
            step: step.max(1),
            next: AtomicUsize::new(0),
            state: Mutex::new(state),
            ended: Condvar::new(),
            is_done: AtomicBool::new(count == 0),
            process: process::id(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.is_done.load(Ordering::Acquire)
    }

    /// Whether a thread could begin a task.
    pub fn has_tasks(&self) -> bool {
        self.next.load(Ordering::Acquire) < self.count
    }

    /// Whether this process began it, so that it ends.
    pub fn is_here(&self) -> bool {
        self.process == process::id()
    }

    /// Tasks that failed, with the reasons.
    pub fn failures(&self) -> Vec<(usize, String)> {
        locked(&self.state).failures.clone()
    }

    /// Whether a task found that something is not stored.
    pub fn missing(&self) -> bool {
        locked(&self.state).missing
    }

    /// Waits until the work is over, or for some time; returns whether it is over.
    pub fn wait(&self, most: Duration) -> bool {
        let state = locked(&self.state);
        let waited = self.ended.wait_timeout_while(state, most, |state| state.left > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.left == 0
    }

    /// Waits without the interpreter's lock until the work is over, or for `timeout` seconds.
    ///
    /// Returns whether it is over. With `help` this thread does tasks too. Signals are seen to.
    pub fn wait_from_python(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        helps: bool,
    ) -> PyResult<bool> {
        guarded(|| {
            if !self.is_here() {
                return Err(PyRuntimeError::new_err("reads of a parent process never end here"));
            }
            let begun = Instant::now();
            loop {
                if helps {
                    py.detach(|| help(self));
                }
                if self.is_done() || py.detach(|| self.wait(SIGNALS)) {
                    return Ok(true);
                }
                py.check_signals()?;
                if timeout.is_some_and(|most| begun.elapsed().as_secs_f64() >= most) {
                    return Ok(false);
                }
            }
        })
    }

    /// Leaves out the tasks that no thread has begun.
    pub fn leave_out(&self) {
        let begun = self.next.fetch_max(self.count, Ordering::AcqRel).min(self.count);
        self.end(self.count - begun, |_| {});
    }

    /// Leaves out the tasks that no thread has begun, and waits for the others.
    pub fn cancel(&self) {
        if !self.is_here() {
            return; // its threads are in another process, and write to that one's memory
        }
        self.leave_out();
        while !self.wait(Duration::from_secs(1)) {}
    }

    /// Does tasks until no more are left to begin, or until `is_enough`, which it asks between steps.
    fn run(&self, scratch: &mut Scratch, is_enough: impl Fn() -> bool) {
        loop {
            let first = self.next.fetch_add(self.step, Ordering::AcqRel);
            if first >= self.count {
                return;
            }
            for task in first..self.count.min(first + self.step) {
                self.run_one(task, scratch);
            }
            if is_enough() {
                return;
            }
        }
    }

    fn run_one(&self, task: usize, scratch: &mut Scratch) {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(|| self.tasks.run(task, scratch)))
            .unwrap_or_else(|panic| Err(format!("a bug: {}", guard::message(&*panic))));
        scratch.give_back();
        self.end(1, |state| match result {
            Ok(Found::Stored) => {}
            Ok(Found::Missing) => state.missing = true,
            Err(why) => state.failures.push((task, why)),
        });
    }

    fn end(&self, count: usize, note: impl FnOnce(&mut State)) {
        let mut state = locked(&self.state);
        note(&mut state);
        state.left -= count;
        if state.left == 0 {
            self.is_done.store(true, Ordering::Release);
            self.ended.notify_all();
        }
    }
}

struct Queue {
    waiting: Waiting,
    threads: usize,
}

struct Pool {
    queue: Mutex<Queue>,
    /// Whether several owners may have work.
    is_shared: AtomicBool,
    filled: Condvar,
    most: AtomicUsize,
    process: u32,
}

/// Tasks that were begun in this process.
static BEGUN: AtomicUsize = AtomicUsize::new(0);

/// The pool of this process; it lives as long as the process.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

impl Pool {
    /// The pool; callers hold the interpreter's lock, so no two of them make one.
    fn get() -> &'static Pool {
        let held = POOL.load(Ordering::Acquire);
        // SAFETY: what POOL points to was leaked, so it lives for ever.
        let most = match unsafe { held.as_ref() } {
            Some(pool) if pool.process == process::id() => return pool,
            // The locks of a forked process may be held by threads that it does not have.
            Some(parent) => parent.most.load(Ordering::Relaxed),
            None => cores(),
        };
        let pool = Box::leak(Box::new(Pool::new(most)));
        POOL.store(pool, Ordering::Release);
        pool
    }

    fn new(most: usize) -> Pool {
        Pool {
            queue: Mutex::new(Queue { waiting: Waiting::default(), threads: 0 }),
            is_shared: AtomicBool::new(false),
            filled: Condvar::new(),
            most: AtomicUsize::new(most),
            process: process::id(),
        }
    }

    fn submit(&'static self, work: Arc<Work>) -> std::io::Result<()> {
        let mut queue = locked(&self.queue);
        let most = self.most.load(Ordering::Relaxed);
        while queue.threads < most {
            let builder = thread::Builder::new().name("windrow-native".to_owned());
            match builder.spawn(|| self.serve()) {
                Ok(_) => queue.threads += 1,
                Err(error) if queue.threads == 0 => return Err(error),
                Err(_) => break,
            }
        }
        let one = work.count <= work.step;
        queue.waiting.put(thread::current().id(), work);
        self.is_shared.store(queue.waiting.is_shared(), Ordering::Relaxed);
        drop(queue);
        if one {
            self.filled.notify_one()
        } else {
            self.filled.notify_all()
        }
        Ok(())
    }

    fn serve(&self) {
        step_back();
        let mut scratch = Scratch::new();
        let mut turn = None;
        while let Some(work) = self.next(&mut turn) {
            let is_over = || turn.as_ref().is_some_and(Turn::is_over);
            work.run(&mut scratch, || self.is_shared.load(Ordering::Relaxed) && is_over());
        }
    }

    /// Work that has tasks to begin; None if there are more threads than there may be.
    fn next(&self, turn: &mut Option<Turn>) -> Option<Arc<Work>> {
        let mut queue = locked(&self.queue);
        loop {
            if queue.threads > self.most.load(Ordering::Relaxed) {
                queue.threads -= 1;
                self.filled.notify_one(); // it may have been woken for work
                return None;
            }
            let work = queue.waiting.take(turn);
            self.is_shared.store(queue.waiting.is_shared(), Ordering::Relaxed);
            if work.is_some() {
                return work;
            }
            queue = self.filled.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Lets threads of a higher priority, such as a training loop, run first where cores are few.
///
/// On two cores with other work beside, a loop of pure Python took 21% longer with reads, and 9 to 12%
/// so. At this niceness a thread still has a quarter of a core that it shares.
fn step_back() {
    #[cfg(target_os = "linux")]
    // SAFETY: it takes numbers only. On Linux it is the calling thread that 0 stands for.
    unsafe {
        // It may fail, and changes nothing then.
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, now + NICENESS);
    }
}

/// Hands work to the threads of this process.
pub fn submit(work: &Arc<Work>) -> PyResult<()> {
    if !work.is_done() {
        Pool::get().submit(Arc::clone(work))?;
    }
    Ok(())
}

thread_local! {
    static OWN: RefCell<Scratch> = RefCell::new(Scratch::new());
}

/// Does tasks of some work on this thread, until no more are left to begin.
pub fn help(work: &Work) {
    OWN.with(|own| match own.try_borrow_mut() {
        Ok(mut scratch) => work.run(&mut scratch, || false),
        Err(_) => work.run(&mut Scratch::new(), || false),
    });
}

type Task<'t> = dyn Fn(usize, &mut Scratch) + Sync + 't;

/// Tasks that borrow what they work on.
struct Borrowed(*const Task<'static>);

// SAFETY: what it points to may be called by any thread, and `each` keeps it.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Tasks for Borrowed {
    fn run(&self, task: usize, scratch: &mut Scratch) -> Result<Found, String> {
        // SAFETY: `each` does not return before the last task is over.
        unsafe { (*self.0)(task, scratch) };
        Ok(Found::Stored)
    }
}

/// Does `task` for the numbers below `count`, here and on the threads of this process.
///
/// Other threads of the interpreter run meanwhile. A panic in a task is a `RuntimeError`.
pub fn each(py: Python<'_>, count: usize, task: impl Fn(usize) + Sync) -> PyResult<()> {
    each_with(py, (count, 1), |number, _| task(number))
}

/// As `each`, with what the thread works with; a thread takes `step` numbers at a time.
pub fn each_with(
    py: Python<'_>,
    (count, step): (usize, usize),
    task: impl Fn(usize, &mut Scratch) + Sync,
) -> PyResult<()> {
    // SAFETY: only the lifetime differs; the work is over before `task` goes.
    let task = unsafe { mem::transmute::<*const Task<'_>, *const Task<'static>>(&raw const task) };
    let work = Arc::new(Work::new(Box::new(Borrowed(task)), count, step));
    if count > step {
        // Without threads this one does it all.
        let _ = submit(&work);
    }
    py.detach(|| {
        help(&work);
        while !work.wait(Duration::from_secs(1)) {}
    });
    match work.failures().into_iter().next() {
        Some((_, why)) => Err(PyRuntimeError::new_err(why)),
        None => Ok(()),
    }
}

/// Cores that this process may use, by its affinity and the limits of its cgroup.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Sets the number of threads that do the core's work, at least 1; without it, one per core.
#[pyfunction]
fn set_threads(count: usize) {
    let pool = Pool::get();
    pool.most.store(count.max(1), Ordering::Relaxed);
    pool.filled.notify_all();
}

/// The number of threads that do the core's work, once there is some.
#[pyfunction]
fn threads() -> usize {
    Pool::get().most.load(Ordering::Relaxed)
}

/// The number of tasks that were begun in this process, such as reads of a chunk.
#[pyfunction]
fn tasks_begun() -> usize {
    BEGUN.load(Ordering::Relaxed)
}

/// Registers the functions of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(tasks_begun, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counted(AtomicUsize);

    impl Tasks for Arc<Counted> {
        fn run(&self, task: usize, _: &mut Scratch) -> Result<Found, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match task % 10 {
                3 => Err(format!("task {task}")),
                4 => panic!("task {task}"),
                5 => Ok(Found::Missing),
                _ => Ok(Found::Stored),
            }
        }
    }

    #[test]
    fn every_task_is_done_once_and_panics_are_failures() {
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let work = Arc::new(Work::new(Box::new(Arc::clone(&counted)), 1000, 7));
        submit(&work).unwrap();
        assert!(work.wait(Duration::from_secs(60)));
        assert_eq!(counted.0.load(Ordering::Relaxed), 1000);
        assert_eq!(work.failures().len(), 200);
        assert!(work.missing());
    }

    #[test]
    fn cancelled_work_is_over() {
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let work = Arc::new(Work::new(Box::new(Arc::clone(&counted)), 100_000, 1));
        submit(&work).unwrap();
        work.cancel();
        assert!(work.is_done());
        let done = counted.0.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(counted.0.load(Ordering::Relaxed), done);
    }

    #[test]
    fn work_without_tasks_is_over_at_once() {
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let work = Arc::new(Work::new(Box::new(counted), 0, 1));
        submit(&work).unwrap();
        assert!(work.is_done());
    }

    const MANY: usize = 10_000;

    /// Tasks that take a while, once they may begin, and say in which order they are done.
    struct Noted {
        name: char,
        may_begin: Arc<AtomicBool>,
        done: Arc<Mutex<Vec<char>>>,
    }

    impl Tasks for Noted {
        fn run(&self, _: usize, _: &mut Scratch) -> Result<Found, String> {
            while !self.may_begin.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_micros(10) {}
            locked(&self.done).push(self.name);
            Ok(Found::Stored)
        }
    }

    /// The order in which a pool does two works of `MANY` tasks: 'a' is submitted before 'b'.
    fn order(threads: usize, has_two_owners: bool) -> Vec<char> {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(threads)));
        let (may_begin, done) = (Arc::default(), Arc::default());
        let work = |name| {
            let (may_begin, done) = (Arc::clone(&may_begin), Arc::clone(&done));
            Arc::new(Work::new(Box::new(Noted { name, may_begin, done }), MANY, 3))
        };
        let (a, b) = (work('a'), work('b'));
        pool.submit(Arc::clone(&a)).unwrap();
        let other = Arc::clone(&b);
        if has_two_owners {
            thread::spawn(|| pool.submit(other)).join().unwrap().unwrap();
        } else {
            pool.submit(other).unwrap();
        }
        may_begin.store(true, Ordering::Release);
        assert!(a.wait(Duration::from_secs(100)) && b.wait(Duration::from_secs(100)));
        locked(&done).clone()
    }

    #[test]
    fn owners_take_turns() {
        for threads in [1, 2] {
            let order = order(threads, true);
            let of_b = order[..MANY].iter().filter(|&&name| name == 'b').count();
            assert!((MANY / 4..=MANY / 4 * 3).contains(&of_b), "{of_b}");
            // A turn is of many tasks, so that a thread seldom asks for the next.
            let turns = order.chunk_by(|a, b| a == b).count();
            assert!(threads > 1 || turns < MANY / 10, "{turns}");
        }
    }

    #[test]
    fn the_work_of_an_owner_is_done_in_its_order() {
        let order = order(1, false);
        assert!(order.is_sorted());
        assert_eq!(order.len(), 2 * MANY);
    }
}
