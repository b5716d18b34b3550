//! Metrics with series by pool: what was counted of a pool goes when the pool is gone.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// A label set that names a pool.
pub trait OfPool {
    /// Returns the pool's name; empty where it is no pool's.
    fn pool(&self) -> &str;
}

/// A metric per label set, as a `Family` is, whose series can be looked through; cheap to clone.
#[derive(Clone, Debug)]
pub struct ByPool<L, M> {
    make: fn() -> M,
    series: Arc<RwLock<BTreeMap<L, M>>>,
}

impl<L: Clone + Ord, M: Clone> ByPool<L, M> {
    /// Has no series yet; `make` begins one.
    pub fn new(make: fn() -> M) -> Self {
        Self { make, series: Arc::default() }
    }

    /// Returns the metric of a label set. It counts for nobody once the pool is gone.
    pub fn get_or_create(&self, labels: &L) -> M {
        if let Some(known) = self.read().get(labels) {
            return known.clone();
        }
        self.write().entry(labels.clone()).or_insert_with(self.make).clone()
    }
}

impl<L, M> ByPool<L, M> {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<L, M>> {
        // writers hold the lock over plain map operations only: what a panic there left is still a map
        self.series.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<L, M>> {
        self.series.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<L: EncodeLabelSet, M: EncodeMetric + TypedMetric> EncodeMetric for ByPool<L, M> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.read().iter().try_for_each(|(labels, metric)| metric.encode(encoder.encode_family(labels)?))
    }

    fn metric_type(&self) -> MetricType {
        M::TYPE
    }

    fn is_empty(&self) -> bool {
        self.read().is_empty()
    }
}

/// Series of pools, whatever else tells them apart.
pub trait Series: Send + Sync {
    /// Takes those away whose pool does not stay.
    fn keep(&self, stays: &dyn Fn(&str) -> bool);
}

impl<L: OfPool + Ord + Send + Sync, M: Send + Sync> Series for ByPool<L, M> {
    fn keep(&self, stays: &dyn Fn(&str) -> bool) {
        self.write().retain(|labels, _| stays(labels.pool()));
    }
}

type IsThere = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// All series of pools.
#[derive(Default)]
pub struct Pools {
    all: Vec<Box<dyn Series>>,
    is_there: OnceLock<IsThere>,
}

impl Pools {
    /// Has the series of one more metric.
    pub fn add(&mut self, series: impl Series + 'static) {
        self.all.push(Box::new(series));
    }

    /// Tells how to know which pools are there; the first to tell counts.
    pub fn heed(&self, is_there: impl Fn(&str) -> bool + Send + Sync + 'static) {
        drop(self.is_there.set(Box::new(is_there)));
    }

    /// Takes the series of pools away that are gone. Done before each look at them, so that what is counted late of a pool is not seen either.
    pub fn sweep(&self) {
        let Some(is_there) = self.is_there.get() else { return };
        self.all.iter().for_each(|series| series.keep(&|pool| pool.is_empty() || is_there(pool)));
    }
}
