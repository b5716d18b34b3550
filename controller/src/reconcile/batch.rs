//! Launches for several claims at once. Claims that ask for the same while EC2's rate is used up wait for one call together; the batch is written on
//! each of them before the call, so that a crash loses nothing: what came of it carries the batch as a tag.
//!
//! EC2 does not say for which claim each instance is. The process that has the answer gives the instances out (`karp_domain::lifecycle::Seats`);
//! one that has none looks for them. The tags that name each instance's claim follow.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::join_all;
use jiff::Timestamp;
use karp_aws::pace::Token;
use karp_domain::api::NodeClaim;
use karp_domain::lifecycle::Seats;
use karp_domain::lifecycle::launch::{ATTEMPT, BATCH, DIGEST, SOUGHT_SINCE, attempt, batch, is_in_doubt};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use moka::sync::Cache;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Context, Error, launch, node_claim};
use crate::cloud::{Instance, LaunchError, Launched, Prepared, Told};
use crate::observe::unread::Guarded;
use crate::ops::metrics::BatcherLabels;

/// Claims in one call: a bound on what one lost answer leaves in doubt.
const MOST: usize = 100;
/// Looks for what a batch gave are at least this far apart.
const LOOKS: Duration = Duration::from_secs(5);
/// Instances that are told their claims at a time, by one look at all of them.
const TOLD_AT_ONCE: usize = 20;
/// One that was too young is looked at again after this: EC2 starts an instance within half a minute.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// What is known of a batch is kept for this long: its claims have long written it down, or been given up.
const MEMORY: Duration = Duration::from_secs(3600);
/// Batches that are known at a time.
const BATCHES: u64 = 10_000;

/// Knows the batches that wait for their turn, and those of which this process knows something.
pub struct Batches {
    /// Those who wait for one call, by what they ask for.
    open: Arc<Mutex<HashMap<String, Vec<Member>>>>,
    known: Cache<String, Arc<tokio::sync::Mutex<Known>>>,
    /// Instances that are told their claims, and claims that go by them.
    untold: Mutex<BTreeMap<String, Arc<NodeClaim>>>,
    /// Wakes who tells them.
    telling: tokio::sync::Notify,
}

/// A claim that waits for a call that is made for others, too.
struct Member {
    claim: NodeClaim,
    /// What its attempt is stamped with, unless it was begun before.
    launched_by: BTreeMap<String, String>,
    answer: oneshot::Sender<Outcome>,
}

/// What a call came to for one claim.
pub enum Outcome {
    /// The batch could not be written on the claim: it is not part of it.
    Left(Error),
    /// An instance for the claim, which is as it was written.
    Launched(Box<(NodeClaim, Instance)>),
    /// Nothing for it.
    Failed {
        /// The claim as it was written.
        claim: Box<NodeClaim>,
        /// Why.
        error: LaunchError,
        /// Something is known to be missing now that was not before.
        taught: bool,
    },
}

/// What is known of a batch whose claims may not all have written it down.
#[derive(Default)]
struct Known {
    seats: Seats,
    instances: BTreeMap<String, Instance>,
    /// The claims without an instance were written to: what earlier processes were about to write to them is out of date.
    fenced: bool,
    looked: Option<Instant>,
}

impl Known {
    fn of(&self, claim: &NodeClaim) -> Option<Instance> {
        self.instances.get(self.seats.of(claim)?).cloned()
    }
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            open: Arc::default(),
            known: Cache::builder().max_capacity(BATCHES).time_to_idle(MEMORY).build(),
            untold: Mutex::default(),
            telling: tokio::sync::Notify::new(),
        }
    }
}

/// How a claim takes part in a call.
enum Part {
    /// It waits for the turn, and may make the call for others, too.
    Leads(Gathering),
    /// Another makes the call.
    Follows(oneshot::Receiver<Outcome>),
}

/// Claims that come together. Dropped it lets all of them go, to try anew.
struct Gathering {
    open: Arc<Mutex<HashMap<String, Vec<Member>>>>,
    alike: String,
    /// None once it is closed: what has its name then is another's.
    own: Option<oneshot::Receiver<Outcome>>,
}

impl Batches {
    /// Joins those who ask for the same.
    fn enter(&self, alike: &str, claim: &NodeClaim, launched_by: &BTreeMap<String, String>) -> Part {
        let (answer, own) = oneshot::channel();
        let member = Member { claim: claim.clone(), launched_by: launched_by.clone(), answer };
        let mut open = locked(&self.open);
        let further = format!("{alike} ");
        let is_alike = |key: &String| key == alike || key.starts_with(&further);
        if let Some((_, members)) = open.iter_mut().find(|(key, members)| is_alike(key) && members.len() < MOST) {
            members.push(member);
            return Part::Follows(own);
        }
        // there is none, or all are full: who comes now leads the next
        let key = match open.contains_key(alike) {
            true => format!("{further}{}", claim.uid().unwrap_or_default()),
            false => alike.to_owned(),
        };
        open.insert(key.clone(), vec![member]);
        Part::Leads(Gathering { open: self.open.clone(), alike: key, own: Some(own) })
    }
}

impl Gathering {
    /// Ends the gathering; answers those who came and where its leader hears of its own claim, or nothing when nobody else came.
    fn close(mut self) -> Option<(Vec<Member>, oneshot::Receiver<Outcome>)> {
        let own = self.own.take()?;
        let members = locked(&self.open).remove(&self.alike).filter(|members| members.len() > 1)?;
        Some((members, own))
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if self.own.is_some() {
            locked(&self.open).remove(&self.alike);
        }
    }
}

/// What a claim's turn came to.
pub enum Turn {
    /// It is launched by itself.
    Own(Token),
    /// A call was made for it and others; nothing where whoever made it has gone, and the claim says how far it came.
    Shared(Option<Outcome>),
}

/// Waits for the turn of a claim, whose attempt is stamped with `launched_by`.
pub async fn take_turn(
    context: &Context,
    prepared: &Prepared,
    claim: &NodeClaim,
    launched_by: &BTreeMap<String, String>,
) -> Turn {
    let began = Instant::now();
    let Some(shared) = prepared.shared.as_ref().filter(|_| !is_in_doubt(claim)) else {
        return Turn::Own(context.cloud.await_turn().await);
    };
    if let Some(turn) = context.cloud.turn() {
        count(context, 1, began);
        return Turn::Own(turn);
    }
    let answer = match context.batches.enter(&shared.alike, claim, launched_by) {
        Part::Follows(answer) => answer,
        Part::Leads(gathering) => {
            let turn = context.cloud.await_turn().await;
            let Some((members, own)) = gathering.close() else {
                count(context, 1, began);
                return Turn::Own(turn);
            };
            count(context, members.len(), began);
            lead(context, prepared, members, turn).await;
            own
        }
    };
    Turn::Shared(answer.await.ok())
}

/// Counts for how many claims a call is made, and for how long the first of them waited.
fn count(context: &Context, claims: usize, began: Instant) {
    let labels = BatcherLabels::new("create_fleet");
    context.metrics.batch_size.get_or_create(&labels).observe(claims as f64);
    context.metrics.batch_time.get_or_create(&labels).observe(began.elapsed().as_secs_f64());
}

/// Makes the call, and tells each claim what came of it.
async fn lead(context: &Context, prepared: &Prepared, members: Vec<Member>, turn: Token) {
    let first = members.first().and_then(|member| member.claim.uid()).unwrap_or_default();
    // no earlier batch has this name: its tag tells of this one alone
    let id = format!("{first}-{:x}", Timestamp::now().as_nanosecond());
    let digest = prepared.shared.as_ref().map(|shared| shared.alike.as_str()).unwrap_or_default();
    let written = join_all(members.into_iter().map(async |Member { claim, launched_by, answer }| {
        let number = attempt(&claim).unwrap_or(1).to_string();
        let mut all = launched_by;
        all.extend(
            [(ATTEMPT, number.as_str()), (DIGEST, digest), (BATCH, &id)].map(|(k, v)| (k.to_owned(), v.to_owned())),
        );
        (write(context, &claim, json!(all)).await, answer)
    }))
    .await;
    let mut seated = Vec::new();
    for (claim, answer) in written {
        match claim {
            Ok(claim) => seated.push((claim, answer)),
            Err(error) => drop(answer.send(Outcome::Left(error))),
        }
    }
    if seated.is_empty() {
        return;
    }
    let count = u32::try_from(seated.len()).unwrap_or(u32::MAX);
    let request = prepared.together(&id, count);
    // not before: for one on which the batch could not be written EC2 is not asked
    seated.iter().for_each(|(claim, _)| context.settled.reopen(claim));
    let launched = launch::timed(context, "Create", context.cloud.launch(&request, turn)).await;
    let (instances, mut error, mut missing): (Vec<Instance>, _, _) = match launched {
        Ok(Launched { instance, others, refused, short }) => {
            let short = short.unwrap_or_else(|| LaunchError::Elsewhere("its instance is another's".to_owned()));
            (others.into_iter().chain([instance]).collect(), short, refused)
        }
        Err(error) => (Vec::new(), error, Vec::new()),
    };
    tracing::info!(batch = id, nodeclaims = count, instances = instances.len(), "launched nodeclaims together");
    if let LaunchError::InsufficientCapacity { offerings, .. } = &mut error {
        // told here of all claims once: each telling makes the memory of it longer. Beside instances the answer names the same as refused
        let offerings = std::mem::take(offerings);
        missing = if missing.is_empty() { offerings } else { missing };
    }
    launch::remember(context, &missing);
    let taught = !missing.is_empty();
    let ids: Vec<String> = instances.iter().map(|one| one.provider_id.clone()).collect();
    let instances = instances.into_iter().map(|one| (one.provider_id.clone(), one)).collect();
    let seats = Seats::answered(seated.iter().map(|(claim, _)| claim), &ids);
    let known = Known { seats, instances, fenced: true, looked: None };
    let told: Vec<(Outcome, oneshot::Sender<Outcome>)> = seated
        .into_iter()
        .map(|(claim, answer)| {
            let outcome = match known.of(&claim) {
                Some(instance) => Outcome::Launched(Box::new((claim, instance))),
                None => Outcome::Failed { claim: Box::new(claim), error: error.clone(), taught },
            };
            (outcome, answer)
        })
        .collect();
    if !matches!(error, LaunchError::InDoubt(_)) {
        context.batches.known.insert(id, Arc::new(tokio::sync::Mutex::new(known)));
    }
    for (outcome, answer) in told {
        // who does not wait any more finds it in what is known
        drop(answer.send(outcome));
    }
}

/// What a claim has of its batch.
pub enum Seat {
    /// Its instance.
    Given(Box<Instance>),
    /// Nothing, as far as EC2 lists what it launched.
    Empty,
}

/// Answers what a claim has of its batch, as this process gave it out or finds it.
pub async fn seat(claim: &NodeClaim, id: &str, context: &Context) -> Result<Seat, Error> {
    let known = context.batches.known.get_with(id.to_owned(), Arc::default);
    let mut known = known.lock().await;
    if let Some(instance) = known.of(claim) {
        return Ok(Seat::Given(Box::new(instance)));
    }
    if known.fenced && known.looked.is_some_and(|looked| looked.elapsed() < LOOKS) {
        return Ok(Seat::Empty);
    }
    let found: Vec<Instance> =
        context.cloud.find_batch(id).await?.into_iter().filter(|instance| !instance.ending).collect();
    let listed = Api::<Guarded<NodeClaim>>::all(context.client.clone()).list(&ListParams::default()).await?;
    let claims: Vec<NodeClaim> = listed.items.into_iter().filter_map(Guarded::or_stand_in).collect();
    if !known.fenced {
        let seeks = |claim: &&NodeClaim| batch(claim) == Some(id) && node_claim::provider_id(claim).is_none();
        let since = Timestamp::now().to_string();
        let mark = |claim| write(context, claim, json!({ (SOUGHT_SINCE): since.as_str() }));
        let marked = join_all(claims.iter().filter(seeks).map(mark)).await;
        // one that was written to in between may have its instance by now: the next look tells
        marked.into_iter().collect::<Result<Vec<_>, _>>()?;
        known.fenced = true;
    }
    let ids: Vec<String> = found.iter().map(|one| one.provider_id.clone()).collect();
    known.seats.seek(id, &ids, &claims);
    known.instances.extend(found.into_iter().map(|one| (one.provider_id.clone(), one)));
    known.looked = Some(Instant::now());
    Ok(known.of(claim).map_or(Seat::Empty, |instance| Seat::Given(Box::new(instance))))
}

async fn write(context: &Context, claim: &NodeClaim, annotations: Value) -> Result<NodeClaim, Error> {
    Ok(node_claim::stamp(context, claim, json!({ "annotations": annotations })).await?)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing can panic while the lock is held, so what a poisoned one holds is still sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Batches {
    /// Has an instance of a batch told whose it is, once that is written on the claim.
    pub fn tell(&self, provider_id: &str, claim: Arc<NodeClaim>) {
        locked(&self.untold).insert(provider_id.to_owned(), claim);
        self.telling.notify_one();
    }

    fn some_untold(&self) -> Vec<(String, Arc<NodeClaim>)> {
        let mut untold = locked(&self.untold);
        std::iter::from_fn(|| untold.pop_first()).take(TOLD_AT_ONCE).collect()
    }
}

/// Tags instances of batches with their claims until `stop` is cancelled, as fast as EC2's rate allows. What fails, or is forgotten by a crash,
/// is found by the collector's listing and told again.
pub async fn run(context: Arc<Context>, stop: CancellationToken) {
    let mut young: BTreeMap<String, Arc<NodeClaim>> = BTreeMap::new();
    let mut again = tokio::time::interval(TELL_AGAIN);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = context.batches.telling.notified() => {}
            _ = again.tick() => {
                young.retain(|id, _| context.stores.claim_of(id).is_some());
                locked(&context.batches.untold).append(&mut young);
            }
        }
        let mut failed = BTreeSet::new();
        while !stop.is_cancelled() {
            let some = context.batches.some_untold();
            if some.is_empty() {
                break;
            }
            let told = some.into_iter().map(async |(id, claim)| (tell(&id, &claim, &context).await, id, claim));
            for (told, id, claim) in join_all(told).await {
                match told {
                    Ok(Told::Done) => {}
                    Ok(Told::TooYoung) => drop(young.insert(id, claim)),
                    Err(why) => drop(failed.insert(why)),
                }
            }
        }
        for error in failed {
            tracing::warn!(error, "cannot tag instances with their nodeclaims yet");
        }
    }
}

async fn tell(id: &str, claim: &NodeClaim, context: &Context) -> Result<Told, String> {
    let Some(class) = context.stores.class(&claim.spec.node_class_ref.name) else { return Ok(Told::Done) };
    context.cloud.tell_claim(id, claim, &class).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, Server, status};
    use super::*;
    use crate::cloud::{CloudError, Request};

    fn claim(number: usize) -> NodeClaim {
        serde_json::from_value(testing::claim(&format!("c-{number}"))).expect("a claim")
    }

    #[tokio::test]
    async fn a_refusal_is_forgotten_of_those_for_which_ec2_is_asked_again() {
        let server = Server::of((0..2).map(|number| testing::claim(&format!("c-{number}"))));
        let context = server.context().await;
        server.answer("PATCH nodeclaims/c-1", Some(409), status(409, "Conflict"));
        let refused = LaunchError::Cloud(CloudError::Retry { after: None, message: "no".to_owned() });
        let (mut members, mut answers) = (Vec::new(), Vec::new());
        for claim in (0..2).map(claim) {
            context.settled.note(&claim, &refused);
            let (answer, own) = oneshot::channel();
            members.push(Member { claim, launched_by: BTreeMap::new(), answer });
            answers.push(own);
        }
        let request = Request::Simulated { node: Box::default() };
        let prepared = Prepared { digest: "d".to_owned(), request, shared: None };
        lead(&context, &prepared, members, Token::free()).await;
        assert!(matches!(answers[1].try_recv(), Ok(Outcome::Left(_))), "the batch is not on it");
        assert_eq!([0, 1].map(|number| context.settled.knows(&claim(number))), [false, true]);
    }

    #[test]
    fn more_than_one_call_takes_gather_for_the_next() {
        let batches = Batches::default();
        let enter = |alike: &str, number| batches.enter(alike, &claim(number), &BTreeMap::new());
        let (mut leaders, mut followers) = (Vec::new(), Vec::new());
        for number in 0..MOST * 2 + 50 {
            match enter("same", number) {
                Part::Leads(gathering) => leaders.push(gathering),
                Part::Follows(answer) => followers.push(answer),
            }
        }
        assert!(matches!(enter("other", 1000), Part::Leads(_)), "it asks for something else");
        let sizes: Vec<usize> =
            leaders.into_iter().map(|one| one.close().map_or(1, |(members, _)| members.len())).collect();
        assert_eq!((sizes, followers.len()), (vec![MOST, MOST, 50], MOST * 2 + 47));
    }

    #[test]
    fn who_is_alone_makes_its_own_call_and_who_leaves_lets_the_others_go() {
        let batches = Batches::default();
        let Part::Leads(alone) = batches.enter("same", &claim(0), &BTreeMap::new()) else { panic!("the first leads") };
        assert!(alone.close().is_none());
        let Part::Leads(leader) = batches.enter("same", &claim(1), &BTreeMap::new()) else { panic!("it leads anew") };
        let Part::Follows(mut answer) = batches.enter("same", &claim(2), &BTreeMap::new()) else {
            panic!("it follows")
        };
        drop(leader);
        assert_eq!(answer.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
    }
}
