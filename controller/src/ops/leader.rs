//! Leader election at the API server, judged by [`Elector`]. Losing the lease ends the process, and until then [`Fence`] refuses what a
//! process would write that does not know yet that it no longer leads. Leases of the same name in other namespaces count too, so that a
//! running Karpenter is never doubled.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::{Method, Request};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use karp_aws::change::Permit;
use karp_domain::lease::{Elector, Move, RENEW_DEADLINE, RETRY_PERIOD};
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;
use tower::BoxError;
use tower::filter::Predicate;

/// Giving the lease up takes no longer: without it the next process waits some seconds more, but the kubelet's patience with this one ends.
const RELEASE: Duration = Duration::from_secs(3);

/// Refuses what a process would write that does not lead any more, though it may not know that yet: it was paused, or cut off. The clients
/// of the API server and of EC2 ask it by themselves, just before they send. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Fence {
    start: Instant,
    /// It leads until then, in milliseconds after the start.
    until: Arc<AtomicU64>,
}

/// Reports a write of a process that does not lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not lead any more: nothing is written")]
pub struct NotLeading;

impl Fence {
    /// Makes a fence that is shut until somebody leads.
    pub fn shut() -> Self {
        Self { start: Instant::now(), until: Arc::default() }
    }

    /// Opens it for good: there is no election.
    pub fn open(&self) {
        self.until.store(u64::MAX, Ordering::Release);
    }

    /// Shuts it again: the lease is given up, or has run out.
    pub fn close(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Lets writes pass until so long after the start.
    fn hold_until(&self, until: Duration) {
        self.until.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Says whether this process may write.
    ///
    /// # Errors
    /// [`NotLeading`] when another may lead by now.
    pub fn check(&self) -> Result<(), NotLeading> {
        self.check_at(self.start.elapsed())
    }

    fn check_at(&self, now: Duration) -> Result<(), NotLeading> {
        let until = self.until.load(Ordering::Acquire);
        if now.as_millis() < u128::from(until) { Ok(()) } else { Err(NotLeading) }
    }

    /// Makes what EC2's clients ask before each attempt to change something.
    pub fn permit(&self) -> Permit {
        let fence = self.clone();
        Permit::new(move || fence.check().is_ok())
    }
}

impl<B> Predicate<Request<B>> for Fence {
    type Request = Request<B>;

    fn check(&mut self, request: Request<B>) -> Result<Request<B>, BoxError> {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            Fence::check(self)?;
        }
        Ok(request)
    }
}

/// Runs the election for one process.
pub struct Election {
    client: Client,
    namespace: String,
    name: String,
    elector: Elector,
    foreign: BTreeMap<String, Elector>,
    fence: Fence,
    version: Option<String>,
}

impl Election {
    /// Prepares the election on the lease `namespace/name`; `client` is one that writes whoever leads, `fence` opens while this process does.
    pub fn new(client: Client, namespace: String, name: String, identity: String, fence: Fence) -> Self {
        Self {
            client,
            namespace,
            name,
            elector: Elector::new(identity),
            foreign: BTreeMap::new(),
            fence,
            version: None,
        }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until this process leads; returns early, without leading, when `stop` is cancelled.
    pub async fn acquire(&mut self, stop: &CancellationToken) -> bool {
        let mut said = None;
        loop {
            match self.attempt().await {
                Ok(None) => return true,
                Ok(Some(obstacle)) => {
                    if said.as_ref() != Some(&obstacle) {
                        tracing::info!(obstacle, "waiting for the lease");
                        said = Some(obstacle);
                    }
                }
                Err(error) => tracing::error!(%error, "{}", trouble(&error)),
            }
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
        }
    }

    /// Tries once to get the lease; returns what stands in the way.
    async fn attempt(&mut self) -> kube::Result<Option<String>> {
        if let Some(obstacle) = self.foreign_holder().await? {
            return Ok(Some(obstacle));
        }
        if self.renew_once().await? {
            return Ok(None);
        }
        Ok(Some(match self.elector.other() {
            Some(holder) => format!("{}/{} is held by {holder}", self.namespace, self.name),
            None => format!("{}/{} changed under us", self.namespace, self.name),
        }))
    }

    /// Looks for a live lease of the same name in any other namespace.
    async fn foreign_holder(&mut self) -> kube::Result<Option<String>> {
        let all: Api<Lease> = Api::all(self.client.clone());
        let listed = all.list(&ListParams::default().fields(&format!("metadata.name={}", self.name))).await?;
        let now = self.fence.start.elapsed();
        self.foreign.retain(|namespace, _| listed.iter().any(|lease| lease.namespace().as_ref() == Some(namespace)));
        for lease in &listed {
            let Some(namespace) = lease.namespace().filter(|namespace| *namespace != self.namespace) else { continue };
            let elector = self.foreign.entry(namespace).or_insert_with(|| Elector::new(String::new()));
            elector.observe(lease.spec.as_ref(), now);
        }
        Ok(self.foreign.iter().find_map(|(namespace, elector)| match elector.next(now) {
            Move::Wait(_) => Some(format!(
                "{namespace}/{} is held by {}: another controller runs there",
                self.name,
                elector.other().unwrap_or("somebody")
            )),
            _ => None,
        }))
    }

    /// Reads the lease and writes it when it is ours to write; returns whether this process leads.
    async fn renew_once(&mut self) -> kube::Result<bool> {
        let started = self.fence.start.elapsed();
        let lease = self.leases().get_opt(&self.name).await?;
        self.version = lease.as_ref().and_then(ResourceExt::resource_version);
        self.elector.observe(lease.as_ref().and_then(|lease| lease.spec.as_ref()), self.fence.start.elapsed());
        if lease.is_some() && self.elector.next(self.fence.start.elapsed()) == Move::Create {
            // A lease without a spec is a free one.
            self.elector.observe(Some(&LeaseSpec::default()), self.fence.start.elapsed());
        }
        let spec = self.elector.claim(jiff::Timestamp::now());
        let written = match self.elector.next(self.fence.start.elapsed()) {
            Move::Wait(_) => return Ok(false),
            Move::Create => {
                let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
                self.leases().create(&PostParams::default(), &Lease { metadata, spec: Some(spec) }).await
            }
            Move::Take | Move::Renew => {
                let mut lease = lease.unwrap_or_default();
                lease.spec = Some(spec);
                self.leases().replace(&self.name, &PostParams::default(), &lease).await
            }
        };
        match written {
            Ok(lease) => {
                self.version = lease.resource_version();
                self.elector.accepted(&lease.spec.unwrap_or_default(), started, self.fence.start.elapsed());
                self.fence.hold_until(started + RENEW_DEADLINE);
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.is_conflict() || status.is_already_exists() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Renews until the lease is lost or `stop` is cancelled; returns whether it was lost.
    pub async fn hold(&mut self, stop: &CancellationToken) -> bool {
        loop {
            tokio::select! {
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
            // An answer that comes after the deadline is worth nothing.
            match tokio::time::timeout(RENEW_DEADLINE / 2, self.renew_once()).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(%error, "could not renew the lease"),
                Err(_) => tracing::warn!("renewing the lease took too long"),
            }
            if !self.elector.leads(self.fence.start.elapsed()) {
                return true;
            }
        }
    }

    /// Gives the lease up so that the next process need not wait for it to expire. This one writes nothing more from then on.
    pub async fn release(&self) {
        let leads = self.elector.leads(self.fence.start.elapsed());
        self.fence.close();
        if !leads {
            return;
        }
        match tokio::time::timeout(RELEASE, self.give_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "could not release the lease; it expires by itself"),
            Err(_) => tracing::warn!("releasing the lease took too long; it expires by itself"),
        }
    }

    /// Frees the lease as it was seen last. A renewal whose answer nobody waited for any more may have been written since: then as it is now, unless
    /// another holds it.
    async fn give_up(&self) -> kube::Result<()> {
        match self.free(self.version.clone()).await {
            Err(kube::Error::Api(status)) if status.is_conflict() => {}
            done => return done,
        }
        let lease = self.leases().get(&self.name).await?;
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != self.elector.claim(jiff::Timestamp::now()).holder_identity.as_deref() {
            return Ok(());
        }
        self.free(lease.resource_version()).await
    }

    /// Writes that nobody holds the lease, if it is still of this version.
    async fn free(&self, version: Option<String>) -> kube::Result<()> {
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            ..self.elector.claim(jiff::Timestamp::now())
        };
        let metadata = ObjectMeta { name: Some(self.name.clone()), resource_version: version, ..ObjectMeta::default() };
        let lease = Lease { metadata, spec: Some(spec) };
        self.leases().replace(&self.name, &PostParams::default(), &lease).await.map(drop)
    }
}

/// Says what it means that the lease cannot be used.
fn trouble(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "cannot use the lease, trying again: the roles of the controller allow karpenter-leader-election in its own namespace, and no other \
             --leader-election-name (LEADER_ELECTION_NAME) or --leader-election-namespace (LEADER_ELECTION_NAMESPACE) without rights that are \
             given beside them"
        }
        _ => "cannot use the lease, trying again",
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use http::Response;
    use karp_kube::rbac::LEASE;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lease_of_another_name_or_namespace_needs_rights_of_its_own() {
        let answer = |code: u16| {
            let status = json!({ "code": code, "message": "no", "reason": "" });
            kube::Error::Api(serde_json::from_value(status).expect("a status"))
        };
        assert_eq!(trouble(&answer(500)), "cannot use the lease, trying again");
        let told = trouble(&answer(403));
        for named in [LEASE, "--leader-election-name ", "--leader-election-namespace "] {
            assert!(told.contains(named), "{told}");
        }
    }

    #[tokio::test]
    async fn who_gives_the_lease_up_has_written_last_and_waits_for_no_answer() {
        let fence = Fence::shut();
        let writes = Arc::new(AtomicU64::new(0));
        let (seen, released) = (fence.clone(), writes.clone());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (seen, released) = (seen.clone(), released.clone());
            async move {
                let method = request.method().clone();
                if method == Method::PUT {
                    assert!(seen.check().is_err(), "nobody writes any more");
                    released.fetch_add(1, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                }
                let none = r#"{"kind":"Status","status":"Failure","code":404,"reason":"NotFound","message":""}"#;
                let (code, body) = if method == Method::POST {
                    (201_u16, request.into_body().collect_bytes().await.expect("a body").to_vec())
                } else {
                    (404, none.as_bytes().to_vec())
                };
                Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body)).expect("a response"))
            }
        });
        let client = Client::new(service, "default");
        let mut election = Election::new(client, "karp".to_owned(), LEASE.to_owned(), "me".to_owned(), fence.clone());
        assert!(election.renew_once().await.expect("an answer") && fence.check().is_ok());
        tokio::time::timeout(3 * RELEASE, election.release()).await.expect("it goes on without the answer");
        assert_eq!((writes.load(Ordering::SeqCst), fence.check()), (1, Err(NotLeading)));
    }

    /// A lease of two writers: each write needs the version of the last one.
    async fn released_after(meanwhile: &'static str) -> (Option<String>, usize) {
        let shared = Arc::new(Mutex::new((None::<Lease>, 0)));
        let state = shared.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let state = state.clone();
            async move {
                let method = request.method().clone();
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut state = state.lock().expect("nobody panicked");
                let (known, writes) = &mut *state;
                let version = known.as_ref().and_then(ResourceExt::resource_version);
                let mut refusal = (method == Method::GET && known.is_none()).then_some((404_u16, "NotFound"));
                if method != Method::GET {
                    let mut new: Lease = serde_json::from_slice(&body).expect("a lease");
                    *writes += 1;
                    if new.metadata.resource_version == version {
                        new.metadata.resource_version = Some(format!("v{writes}"));
                        *known = Some(new);
                    } else {
                        refusal = Some((409, "Conflict"));
                    }
                }
                let (code, answer) = match refusal {
                    Some((code, reason)) => (code, json!({ "code": code, "reason": reason }).to_string()),
                    None => (200, serde_json::to_string(&*known).expect("a lease")),
                };
                let answer = Response::builder().status(code).body(Body::from(answer.into_bytes()));
                Ok::<_, Infallible>(answer.expect("a response"))
            }
        });
        let client = Client::new(service, "default");
        let mut election = Election::new(client, "karp".to_owned(), LEASE.to_owned(), "me".to_owned(), Fence::shut());
        assert!(election.renew_once().await.expect("an answer"));
        if let (Some(lease), _) = &mut *shared.lock().expect("nobody panicked") {
            lease.metadata.resource_version = Some("later".to_owned());
            lease.spec.get_or_insert_default().holder_identity = Some(meanwhile.to_owned());
        }
        election.release().await;
        let (lease, writes) = shared.lock().expect("nobody panicked").clone();
        (lease.and_then(|lease| lease.spec?.holder_identity), writes)
    }

    #[tokio::test]
    async fn a_renewal_that_was_under_way_does_not_keep_the_lease() {
        assert_eq!(released_after("me").await, (Some(String::new()), 3));
        assert_eq!(released_after("another").await, (Some("another".to_owned()), 2), "who holds it by now keeps it");
    }

    #[test]
    fn writes_pass_while_the_lease_is_sure_and_reads_always() {
        let mut fence = Fence::shut();
        let asks = |fence: &mut Fence, method: Method| {
            let request = Request::builder().method(method).body(()).expect("a request");
            Predicate::check(fence, request).is_ok()
        };
        assert!(asks(&mut fence, Method::GET) && !asks(&mut fence, Method::PATCH));
        fence.hold_until(Duration::from_secs(10));
        let at = |millis: u64| fence.check_at(Duration::from_millis(millis));
        assert_eq!((at(9_999), at(10_000)), (Ok(()), Err(NotLeading)));
        assert!(asks(&mut fence, Method::DELETE) && asks(&mut fence, Method::POST));
        fence.open();
        assert_eq!(fence.check_at(Duration::from_secs(1 << 40)), Ok(()));
    }
}
