//! Byte ranges of remote objects, fetched by the crate `object_store` without the interpreter.
//!
//! Invariants: bytes come from the version of the object that was asked for, or an error says that it
//! changed; what is not taken any more is not fetched any more; the crate alone decides what is tried again.

use std::collections::{HashMap, VecDeque};
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt,
    RetryConfig,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
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

/// A part of an object by its path: bytes from `start` to `stop`, the last `stop` bytes, or all of it; and
/// the version that is wanted, any if it is empty.
type Wanted = (String, Option<u64>, Option<u64>, String);

/// What came of a request: its bytes with the size and the version of the object, or why there are none.
type Answer = Result<(Bytes, u64, String), (&'static str, String)>;

/// What became of the requests of a store.
#[derive(Debug, Default)]
struct Counts {
    requests: u64,
    /// Requests that failed, by the kind of the fault.
    faults: HashMap<String, u64>,
    /// Seconds until the answers of the last requests began.
    took_s: VecDeque<f64>,
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
            Ok(found) if found.status().is_success() => {
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
    slots: Arc<Semaphore>,
    /// The most bytes of a file that is fetched whole, where a server takes no ranges.
    most_whole: u64,
    counts: Arc<Mutex<Counts>>,
}

#[pymethods]
impl Objects {
    /// Opens nothing yet.
    ///
    /// `options` are keys of the crate with their values; `headers` go with each request; times are
    /// seconds. A fault that may pass is tried `retries` times more; by a patient fetch, for `outage_s`.
    #[new]
    #[allow(clippy::too_many_arguments, reason = "they are the limits of requests")]
    #[pyo3(signature = (url, options, *, headers, at_once, most_whole, timeout_s, stall_s, retries, backoff_s,
        max_backoff_s, outage_s))]
    fn new(
        url: &str,
        options: Vec<(String, String)>,
        headers: Vec<(String, String)>,
        at_once: usize,
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
            Ok(Objects {
                store: open(retries, longest_s).map_err(refused)?,
                patient: open(usize::MAX, outage_s.max(longest_s)).map_err(refused)?,
                slots: Arc::new(Semaphore::new(at_once)),
                most_whole,
                counts,
            })
        })
    }

    /// Starts to fetch parts of objects.
    #[pyo3(signature = (wanted, *, patient=false))]
    fn fetch(&self, wanted: Vec<Wanted>, patient: bool) -> PyResult<Fetching> {
        guarded(|| {
            let left = wanted.len();
            let inbox = Arc::new(Inbox {
                arrived: Mutex::new(Arrived { answers: VecDeque::new(), left }),
                bell: Condvar::new(),
            });
            let store = if patient { &self.patient } else { &self.store }.clone();
            let (slots, to, most) = (self.slots.clone(), inbox.clone(), self.most_whole);
            let at_once = left.clamp(1, slots.available_permits().max(1));
            let work = stream::iter(wanted.into_iter().enumerate())
                .map(move |(place, one)| {
                    let (store, slots) = (store.clone(), slots.clone());
                    async move {
                        let _slot = slots.acquire().await;
                        (place, fetched(&*store, most, one).await)
                    }
                })
                .buffer_unordered(at_once)
                .for_each(move |(place, answer)| {
                    to.put(place, answer);
                    std::future::ready(())
                });
            let task = runtime()?.spawn(work);
            Ok(Fetching { inbox, task: task.abort_handle() })
        })
    }

    /// The number of requests, of faults by kind, and the seconds until the last answers began.
    fn counts(&self) -> (u64, HashMap<String, u64>, Vec<f64>) {
        let counts = self.counts.lock().expect("no one panics");
        (counts.requests, counts.faults.clone(), counts.took_s.iter().copied().collect())
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

async fn fetched(store: &dyn ObjectStore, most_whole: u64, wanted: Wanted) -> Answer {
    let (path, start, stop, version) = wanted;
    let path = Path::from_url_path(&path).map_err(|error| ("other", error.to_string()))?;
    let range = match (start, stop) {
        (Some(start), Some(stop)) => Some(GetRange::Bounded(start..stop)),
        (None, Some(last)) => Some(GetRange::Suffix(last)),
        _ => None,
    };
    let answer = store.get_opts(&path, GetOptions { range: range.clone(), ..Default::default() });
    let found = match answer.await {
        // A server that serves whole files alone; an empty file has no last bytes.
        Err(Error::NotSupported { .. }) => whole(store, &path, most_whole).await?,
        Err(error) if is_out_of_range(&error) => whole(store, &path, 0).await?,
        other => other.map_err(named)?,
    };
    let (size, came) = (found.meta.size, version_of(&found.meta));
    if !version.is_empty() && came != version {
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
    Ok((data.slice((part.start - first) as usize..(part.end - first) as usize), size, came))
}

/// All of an object that has at most `most` bytes.
async fn whole(
    store: &dyn ObjectStore,
    path: &Path,
    most: u64,
) -> Result<GetResult, (&'static str, String)> {
    let found = store.get(path).await.map_err(named)?;
    if found.meta.size > most {
        return Err(("no ranges", "the server sends whole files only".to_owned()));
    }
    Ok(found)
}

fn is_out_of_range(error: &Error) -> bool {
    matches!(error, Error::Generic { .. }) && text_of(error).contains("416 Range Not Satisfiable")
}

fn version_of(meta: &object_store::ObjectMeta) -> String {
    match &meta.e_tag {
        Some(tag) => format!("ETag {tag}"),
        None => format!("Last-Modified {}", meta.last_modified.timestamp()),
    }
}

/// The kind of an error, and what it says.
fn named(error: Error) -> (&'static str, String) {
    let kind = match &error {
        Error::NotFound { .. } => "missing",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => "denied",
        Error::Precondition { .. } => "changed",
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

struct Arrived {
    answers: VecDeque<(usize, Answer)>,
    /// Answers that have not been taken.
    left: usize,
}

struct Inbox {
    arrived: Mutex<Arrived>,
    bell: Condvar,
}

impl Inbox {
    fn put(&self, place: usize, answer: Answer) {
        self.arrived.lock().expect("no one panics").answers.push_back((place, answer));
        self.bell.notify_all();
    }

    fn take(&self, until: Option<Instant>) -> Option<(usize, Answer)> {
        let mut arrived = self.arrived.lock().expect("no one panics");
        loop {
            if let Some(found) = arrived.answers.pop_front() {
                arrived.left -= 1;
                return Some(found);
            }
            if arrived.left == 0 {
                return None;
            }
            arrived = match until {
                None => self.bell.wait(arrived).expect("no one panics"),
                Some(until) => {
                    let room = until.checked_duration_since(Instant::now())?;
                    self.bell.wait_timeout(arrived, room).expect("no one panics").0
                }
            };
        }
    }
}

/// What Python gets of an answer: its place, the bytes, the size and the version of the object.
type Told<'py> = (usize, Option<Bound<'py, PyBytes>>, u64, String, &'static str);

/// Requests under way. When it is dropped, the rest of them ends.
#[pyclass(frozen)]
pub struct Fetching {
    inbox: Arc<Inbox>,
    task: AbortHandle,
}

#[pymethods]
impl Fetching {
    /// Waits for the next answer, or for `timeout` seconds: its place, bytes, the size and version of the
    /// object; or its place, None, 0, a detail and the kind of the error. None after the last one.
    #[pyo3(signature = (timeout=None))]
    fn take<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Told<'py>>> {
        let until = timeout.map(|seconds| Instant::now() + Duration::from_secs_f64(seconds));
        let found = py.detach(|| self.inbox.take(until));
        Ok(found.map(|(place, answer)| match answer {
            Ok((data, size, version)) => (place, Some(PyBytes::new(py, &data)), size, version, ""),
            Err((kind, detail)) => (place, None, 0, detail, kind),
        }))
    }

    /// Ends the requests under way.
    fn cancel(&self) {
        self.task.abort();
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Registers the classes of this module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Objects>()
}
