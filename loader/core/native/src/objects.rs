//! Byte ranges of remote objects, fetched by the crate `object_store` without the interpreter.
//!
//! Invariants: bytes come from the version of the object that was asked for, or an error says that it
//! changed; what is not taken any more is not fetched any more; the crate alone decides what is tried again.

use std::collections::{HashMap, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, resolve_bucket_region};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    Attribute, BackoffConfig, ClientOptions, Error, GetOptions, GetRange, GetResult, ObjectStore,
    ObjectStoreExt, RetryConfig,
};
use pyo3::exceptions::{PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use crate::guard::guarded;

/// Threads that wait for answers; what they do besides is little.
const THREADS: usize = 2;

fn refused(why: impl ToString) -> PyErr {
    PyValueError::new_err(why.to_string())
}

fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let found = RUNTIME.get_or_init(|| {
        // An error says that the process has another provider already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("windrow-net").enable_all().build()
    });
    found.as_ref().map_err(refused)
}

/// A part of an object by its path: bytes from `start` to `stop`, the last `stop` bytes, or all of it; the
/// version that is wanted, any if it is empty; and the bytes that it takes of the budget.
type Wanted = (String, Option<u64>, Option<u64>, String, u64);

/// What came of a request: its bytes with the size and the version of the object and whether it is a page of
/// HTML, or why there are none.
type Answer = Result<(Bytes, u64, String, bool), (&'static str, String)>;

/// What became of the requests of a store.
#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    /// Requests that were asked for; the others were made again.
    asked: u64,
    /// Requests that failed, by the kind of the fault.
    faults: HashMap<String, u64>,
    /// Seconds until the answers of the last requests began.
    took_s: VecDeque<f64>,
}

/// Bytes of one permit of a budget.
const PERMIT_BYTES: u64 = 1024;

/// Slots by host and limit, as long as a store uses them.
type HostSlots = HashMap<(String, usize), Weak<Semaphore>>;

/// Slots for requests to one host or bucket, shared by all stores of the process with the same limit.
fn shared_slots(url: &str, most: usize) -> Arc<Semaphore> {
    static SHARED: OnceLock<Mutex<HostSlots>> = OnceLock::new();
    let host = url.split('/').take(3).collect::<Vec<_>>().join("/");
    let mut shared = SHARED.get_or_init(Mutex::default).lock().expect("no one panics");
    shared.retain(|_, slots| slots.strong_count() > 0);
    let known = shared.get(&(host.clone(), most)).and_then(Weak::upgrade);
    known.unwrap_or_else(|| {
        let slots = Arc::new(Semaphore::new(most));
        shared.insert((host, most), Arc::downgrade(&slots));
        slots
    })
}

/// Whether the answer was an error whose body broke off.
fn is_cut_error(why: &str) -> bool {
    why.contains("Error performing") && why.contains("error reading a body")
}

/// Answers whose times are kept.
const KEPT_TIMES: usize = 1024;

/// Counts the requests that pass through it.
#[derive(Debug, Clone)]
struct Counter(Arc<Mutex<Counts>>);

impl HttpConnector for Counter {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Counting { inner, counts: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Counting {
    inner: HttpClient,
    counts: Arc<Mutex<Counts>>,
}

#[async_trait]
impl HttpService for Counting {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let begun = Instant::now();
        let answer = self.inner.execute(request).await;
        let mut counts = self.counts.lock().expect("no one panics");
        counts.requests += 1;
        let fault = match &answer {
            // That there is no such object is an answer.
            Ok(found) if found.status().is_success() || found.status().as_u16() == 404 => {
                if counts.took_s.len() == KEPT_TIMES {
                    counts.took_s.pop_front();
                }
                counts.took_s.push_back(begun.elapsed().as_secs_f64());
                return answer;
            }
            Ok(found) => format!("status {}", found.status().as_u16()),
            Err(error) => fault_of(error.kind()).to_owned(),
        };
        *counts.faults.entry(fault).or_default() += 1;
        answer
    }
}

fn fault_of(kind: HttpErrorKind) -> &'static str {
    match kind {
        HttpErrorKind::Connect => "no connection",
        HttpErrorKind::Timeout => "timeout",
        HttpErrorKind::Request | HttpErrorKind::Interrupted => "connection broken",
        HttpErrorKind::Decode => "answer not understood",
        _ => "other",
    }
}

/// A bucket, a container or a server.
#[pyclass(frozen)]
pub struct Objects {
    /// Tries requests again as often as it was told.
    store: Arc<dyn ObjectStore>,
    /// Tries them again for as long as a store that answered before may be away.
    patient: Arc<dyn ObjectStore>,
    /// For requests of this store, and of all stores of the process to the same host.
    slots: [Arc<Semaphore>; 2],
    at_once: usize,
    /// For bytes that were requested and not taken.
    budget: Arc<Semaphore>,
    budget_permits: u32,
    /// Whether paths are those of a URL, with escapes.
    is_web: bool,
    /// The most bytes of a file that is fetched whole, where a server takes no ranges.
    most_whole: u64,
    counts: Arc<Mutex<Counts>>,
    retries: usize,
    pause: Duration,
}

#[pymethods]
impl Objects {
    /// Opens nothing yet.
    ///
    /// `options` are keys of the crate with their values; `headers` go with each request; times are
    /// seconds. A fault that may pass is tried `retries` times more; by a patient fetch, for `outage_s`.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are the limits of requests")]
    #[pyo3(signature = (url, options, *, headers, at_once, per_host, in_flight_bytes, most_whole, timeout_s,
        stall_s, retries, backoff_s, max_backoff_s, outage_s))]
    fn new(
        url: &str,
        options: Vec<(String, String)>,
        headers: Vec<(String, String)>,
        at_once: usize,
        per_host: usize,
        in_flight_bytes: u64,
        most_whole: u64,
        timeout_s: f64,
        stall_s: f64,
        retries: usize,
        backoff_s: f64,
        max_backoff_s: f64,
        outage_s: f64,
    ) -> PyResult<Objects> {
        guarded(|| {
            runtime()?;
            let mut sent = HeaderMap::new();
            for (name, value) in headers {
                let name = HeaderName::from_str(&name).map_err(refused)?;
                sent.insert(name, HeaderValue::from_str(&value).map_err(refused)?);
            }
            let client = ClientOptions::new()
                .with_allow_http(true)
                .with_default_headers(sent)
                .with_timeout(Duration::from_secs_f64(timeout_s))
                .with_read_timeout(Duration::from_secs_f64(stall_s));
            let backoff = BackoffConfig {
                init_backoff: Duration::from_secs_f64(backoff_s),
                max_backoff: Duration::from_secs_f64(max_backoff_s),
                base: 2.0,
            };
            let counts = Arc::<Mutex<Counts>>::default();
            let open = |max_retries, seconds| {
                let retry_timeout = Duration::from_secs_f64(seconds);
                let retry = RetryConfig { backoff: backoff.clone(), max_retries, retry_timeout };
                opened(url, &options, client.clone(), retry, Counter(counts.clone()))
            };
            let longest_s = (retries + 1) as f64 * (timeout_s + max_backoff_s);
            let budget_permits = in_flight_bytes.div_ceil(PERMIT_BYTES).clamp(1, 1 << 28) as u32;
            Ok(Objects {
                store: open(retries, longest_s).map_err(refused)?,
                patient: open(usize::MAX, outage_s.max(longest_s)).map_err(refused)?,
                slots: [Arc::new(Semaphore::new(at_once)), shared_slots(url, per_host)],
                at_once,
                budget: Arc::new(Semaphore::new(budget_permits as usize)),
                budget_permits,
                is_web: url.starts_with("http"),
                most_whole,
                counts,
                retries,
                pause: Duration::from_secs_f64(backoff_s),
            })
        })
    }

    /// Starts to fetch parts of objects.
    #[pyo3(signature = (wanted, *, patient=false))]
    fn fetch(&self, wanted: Vec<Wanted>, patient: bool) -> PyResult<Fetching> {
        guarded(|| {
            let inbox = Inbox::of(wanted.len());
            let store = if patient { &self.patient } else { &self.store }.clone();
            let (slots, budget, to) = (self.slots.clone(), self.budget.clone(), inbox.clone());
            let (most, permits, is_web) = (self.most_whole, self.budget_permits, self.is_web);
            let counts = self.counts.clone();
            let (retries, pause) = (self.retries, self.pause);
            let at_once = wanted.len().clamp(1, self.at_once);
            let work = stream::iter(wanted.into_iter().enumerate())
                .map(move |(place, one)| {
                    let (store, [own, shared]) = (store.clone(), slots.clone());
                    let (budget, counts) = (budget.clone(), counts.clone());
                    async move {
                        let weight = one.4.div_ceil(PERMIT_BYTES).min(permits.into()) as u32;
                        let held = budget.acquire_many_owned(weight).await.ok();
                        let _own = own.acquire().await;
                        let _shared = shared.acquire().await;
                        counts.lock().expect("no one panics").asked += 1;
                        let mut left = retries;
                        let answer = loop {
                            match fetched(&*store, most, is_web, &one).await {
                                // The crate does not go on with the body of an answer that is an error.
                                Err((_, why)) if left > 0 && is_cut_error(&why) => left -= 1,
                                answer => break answer,
                            }
                            tokio::time::sleep(pause).await;
                        };
                        Arrival { place, answer, held }
                    }
                })
                .buffer_unordered(at_once)
                .for_each(move |arrival| {
                    to.put(arrival);
                    std::future::ready(())
                });
            Fetching::spawned(inbox, work)
        })
    }

    /// Starts to list the names under a prefix. The bytes of the only answer are the names, each ended by a
    /// zero; folders end in a slash.
    fn list(&self, prefix: String) -> PyResult<Fetching> {
        guarded(|| {
            let (inbox, store, [own, shared]) =
                (Inbox::of(1), self.store.clone(), self.slots.clone());
            let (to, counts) = (inbox.clone(), self.counts.clone());
            let work = async move {
                let _own = own.acquire().await;
                let _shared = shared.acquire().await;
                counts.lock().expect("no one panics").asked += 1;
                let answer = listed(&*store, &prefix).await;
                to.put(Arrival { place: 0, answer, held: None });
            };
            Fetching::spawned(inbox, work)
        })
    }

    /// The number of requests, of those made again, of faults by kind, and the seconds until the last
    /// answers began.
    fn counts(&self) -> (u64, u64, HashMap<String, u64>, Vec<f64>) {
        let counts = self.counts.lock().expect("no one panics");
        let again = counts.requests.saturating_sub(counts.asked);
        let mut faults = counts.faults.clone();
        // The crate goes on with a body that broke off by a request that no answer explains.
        let bodies = again.saturating_sub(faults.values().sum());
        if bodies > 0 {
            *faults.entry("cut short".to_owned()).or_default() += bodies;
        }
        (counts.requests, again, faults, counts.took_s.iter().copied().collect())
    }
}

fn opened(
    url: &str,
    options: &[(String, String)],
    client: ClientOptions,
    retry: RetryConfig,
    counter: Counter,
) -> object_store::Result<Arc<dyn ObjectStore>> {
    macro_rules! limited {
        ($builder:expr) => {
            $builder
                .with_url(url)
                .with_client_options(client)
                .with_retry(retry)
                .with_http_connector(counter)
        };
    }
    macro_rules! with {
        ($builder:expr, $key:ty) => {{
            let mut builder = limited!($builder);
            for (key, value) in options {
                builder = builder.with_config(<$key>::from_str(key)?, value);
            }
            Arc::new(builder.build()?)
        }};
    }
    Ok(match url.split_once("://").map_or("", |(scheme, _)| scheme) {
        "s3" | "s3a" => with!(AmazonS3Builder::new(), AmazonS3ConfigKey),
        "gs" | "gcs" => with!(GoogleCloudStorageBuilder::new(), GoogleConfigKey),
        "az" | "abfs" | "abfss" | "adl" | "azure" => {
            with!(MicrosoftAzureBuilder::new(), AzureConfigKey)
        }
        _ => Arc::new(limited!(HttpBuilder::new()).build()?),
    })
}

async fn listed(store: &dyn ObjectStore, prefix: &str) -> Answer {
    let folder = Path::parse(prefix).map_err(|error| ("other", error.to_string()))?;
    let found = store.list_with_delimiter(Some(&folder)).await.map_err(named)?;
    // A store also lists the object that marks the folder.
    let inside = found.objects.iter().filter(|one| one.location != folder);
    let objects = inside.filter_map(|one| one.location.filename()).map(str::to_owned);
    let folders =
        found.common_prefixes.iter().filter_map(|one| Some(format!("{}/", one.filename()?)));
    let names: String = objects.chain(folders).flat_map(|name| [name, "\0".to_owned()]).collect();
    Ok((Bytes::from(names), 0, String::new(), false))
}

async fn fetched(
    store: &dyn ObjectStore,
    most_whole: u64,
    is_web: bool,
    wanted: &Wanted,
) -> Answer {
    let (path, start, stop, version, _) = wanted;
    let path = if is_web { Path::from_url_path(path) } else { Path::parse(path) };
    let path = path.map_err(|error| ("other", error.to_string()))?;
    let range = match (start, stop) {
        (Some(start), Some(stop)) => Some(GetRange::Bounded(*start..*stop)),
        (None, Some(last)) => Some(GetRange::Suffix(*last)),
        _ => None,
    };
    let answer = store.get_opts(&path, GetOptions { range: range.clone(), ..Default::default() });
    let found = match answer.await {
        // A server that serves whole files alone; an empty file has no last bytes.
        Err(error) if is_whole(&error) => match whole(store, &path, most_whole).await? {
            Ok(found) => found,
            Err(size) => {
                // It may take ranges that begin somewhere.
                let Some(GetRange::Suffix(last)) = range else { return Err(no_ranges()) };
                let range = Some(GetRange::Bounded(size.saturating_sub(last)..size));
                let answer = store.get_opts(&path, GetOptions { range, ..Default::default() });
                answer.await.map_err(named)?
            }
        },
        Err(error) if is_out_of_range(&error) => {
            whole(store, &path, 0).await?.map_err(|_| named(error))?
        }
        other => other.map_err(named)?,
    };
    if found.attributes.get(&Attribute::ContentEncoding).is_some_and(|name| **name != *"identity") {
        return Err(("compressed", "the server sends it compressed".to_owned()));
    }
    let is_page = found.attributes.get(&Attribute::ContentType);
    let is_page = is_page.is_some_and(|kind| kind.starts_with("text/html"));
    let (size, came) = (found.meta.size, version_of(&found.meta));
    if !version.is_empty() && came != *version {
        return Err(("changed", format!("it was {version} and is {came}")));
    }
    let (first, expected) = (found.range.start, found.range.end - found.range.start);
    let data = found.bytes().await.map_err(named)?;
    if data.len() as u64 != expected {
        return Err(("cut short", format!("{} bytes came instead of {expected}", data.len())));
    }
    let part = match range {
        Some(GetRange::Bounded(part)) => part,
        Some(GetRange::Suffix(last)) => size.saturating_sub(last)..size,
        _ => 0..size,
    };
    if part.start < first || part.end > first + expected {
        return Err(("cut short", format!("it has {size} bytes, and {} were wanted", part.end)));
    }
    let data = data.slice((part.start - first) as usize..(part.end - first) as usize);
    Ok((data, size, came, is_page))
}

/// All of an object that has at most `most` bytes, or else its size.
async fn whole(
    store: &dyn ObjectStore,
    path: &Path,
    most: u64,
) -> Result<Result<GetResult, u64>, (&'static str, String)> {
    let found = store.get(path).await.map_err(named)?;
    let size = found.meta.size;
    Ok(if size > most { Err(size) } else { Ok(found) })
}

fn no_ranges() -> (&'static str, String) {
    ("no ranges", "the server sends whole files only".to_owned())
}

/// Whether a server sent all of an object where a part was asked for.
fn is_whole(error: &Error) -> bool {
    matches!(error, Error::NotSupported { .. }) || text_of(error).contains("non-partial response")
}

fn is_out_of_range(error: &Error) -> bool {
    matches!(error, Error::Generic { .. }) && text_of(error).contains("416 Range Not Satisfiable")
}

/// What distinguishes an object from another at its path; its size, if the server states nothing else.
fn version_of(meta: &object_store::ObjectMeta) -> String {
    match (&meta.e_tag, meta.last_modified.timestamp()) {
        (Some(tag), _) => format!("ETag {tag}"),
        (None, 0) => format!("{} bytes", meta.size),
        (None, seconds) => format!("Last-Modified {seconds}"),
    }
}

/// The kind of an error, and what it says.
fn named(error: Error) -> (&'static str, String) {
    let kind = match &error {
        Error::NotFound { .. } => "missing",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => "denied",
        Error::NotSupported { .. } => "no ranges",
        _ => "network",
    };
    (kind, text_of(&error))
}

/// What an error and its causes say.
fn text_of(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let own = inner.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = inner.source();
    }
    text
}

struct Arrival {
    place: usize,
    answer: Answer,
    /// Its part of the budget.
    held: Option<OwnedSemaphorePermit>,
}

struct Arrived {
    answers: VecDeque<Arrival>,
    /// Answers that have not been taken; 0 after `cancel`.
    left: usize,
}

struct Inbox {
    arrived: Mutex<Arrived>,
    bell: Condvar,
}

impl Inbox {
    fn of(left: usize) -> Arc<Inbox> {
        let arrived = Mutex::new(Arrived { answers: VecDeque::new(), left });
        Arc::new(Inbox { arrived, bell: Condvar::new() })
    }

    fn put(&self, arrival: Arrival) {
        self.arrived.lock().expect("no one panics").answers.push_back(arrival);
        self.bell.notify_all();
    }

    fn close(&self) {
        let mut arrived = self.arrived.lock().expect("no one panics");
        arrived.left = 0;
        arrived.answers.clear();
        self.bell.notify_all();
    }

    /// Waits for arrivals, and takes all that are there; none after the last one. None if it takes longer.
    fn take(&self, most: Duration) -> Option<VecDeque<Arrival>> {
        let mut arrived = self.arrived.lock().expect("no one panics");
        if arrived.left > 0 && arrived.answers.is_empty() {
            arrived = self.bell.wait_timeout(arrived, most).expect("no one panics").0;
        }
        let found = std::mem::take(&mut arrived.answers);
        arrived.left -= found.len();
        (!found.is_empty() || arrived.left == 0).then_some(found)
    }
}

/// What Python gets of an answer: its place, the bytes, the size and the version of the object, whether it is
/// a page of HTML, and the kind of the error.
type Told<'py> = (usize, Option<Bound<'py, PyBytes>>, u64, String, bool, &'static str);

/// How often a thread that waits looks for signals of the process.
const SIGNALS: Duration = Duration::from_millis(100);

/// Requests under way. When it is dropped, the rest of them ends.
#[pyclass(frozen)]
pub struct Fetching {
    inbox: Arc<Inbox>,
    task: AbortHandle,
    /// The part of the budget of the answers that were taken last.
    held: Mutex<Vec<OwnedSemaphorePermit>>,
}

impl Fetching {
    fn spawned(
        inbox: Arc<Inbox>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> PyResult<Fetching> {
        let task = runtime()?.spawn(work).abort_handle();
        Ok(Fetching { inbox, task, held: Mutex::default() })
    }
}

#[pymethods]
impl Fetching {
    /// Waits for answers, and takes all that are there: of each its place, bytes, the size and version of the
    /// object, whether it is a page; or its place, None, 0, a detail, false and the kind of the error. None are
    /// left after the last one, or `cancel`.
    ///
    /// Raises TimeoutError after `timeout` seconds.
    fn take<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Vec<Told<'py>>> {
        self.held.lock().expect("no one panics").clear();
        let until = Instant::now() + Duration::from_secs_f64(timeout);
        let arrivals = loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(found) = py.detach(|| self.inbox.take(SIGNALS.min(left))) {
                break found;
            }
            py.check_signals()?;
            if Instant::now() >= until {
                return Err(PyTimeoutError::new_err("no answer yet"));
            }
        };
        let mut all_held = self.held.lock().expect("no one panics");
        let told = arrivals.into_iter().map(|Arrival { place, answer, held }| {
            all_held.extend(held);
            match answer {
                Ok((data, size, version, is_page)) => {
                    (place, Some(PyBytes::new(py, &data)), size, version, is_page, "")
                }
                Err((kind, detail)) => (place, None, 0, detail, false, kind),
            }
        });
        Ok(told.collect())
    }

    /// Ends the requests under way, and whoever waits for them.
    fn cancel(&self) {
        self.task.abort();
        self.inbox.close();
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The region of a bucket of AWS, by an unsigned request.
#[pyfunction]
fn bucket_region(py: Python<'_>, bucket: &str, timeout: f64) -> PyResult<String> {
    let timeout = Duration::from_secs_f64(timeout);
    let client = ClientOptions::new().with_timeout(timeout);
    let asked = resolve_bucket_region(bucket, &client);
    py.detach(|| runtime()?.block_on(asked).map_err(refused))
}

/// Registers the classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(bucket_region, module)?)?;
    module.add_class::<Objects>()
}
