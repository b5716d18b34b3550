//! Many claims at once, more than EC2 takes calls for, on a real control plane and the emulated AWS: they are launched by few calls, each has one
//! instance of its own whoever crashes when, and every instance is told whose it is.
//!
//! Runs when `KARP_TEST_KUBECONFIG`, `KARP_TEST_AWS_ENDPOINT` and `KARP_TEST_CLUSTER` name a sandbox; `cargo verify` starts one. `KARP_TOGETHER=1000`
//! says how many equal claims the first test makes, and how many different ones the second; so does `KARP_DEEP=1`.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use futures::future::join_all;
use karp_domain::api::{Ec2NodeClass, NodeClaim, conditions, labels};
use karp_domain::lifecycle::launch::{BATCH, batch};
use karp_domain::pace::Rate;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use support::aws::is_ending;
use support::stand::{Stand, instance_of};
use support::{create, end, until, until_within};

/// The bucket of CreateFleet holds so many tokens: the first claims go one by one, the others together.
const BURST: usize = 50;
/// Beyond the burst, enough for a few batches.
const CLAIMS: usize = 130;
/// Claims that come before the controller is killed, and as many that come after it: also on a machine that makes them slowly there are more than the
/// burst and the tokens that come meanwhile.
const EACH: usize = 100;
/// Different claims: enough to wait for some tokens.
const APART: usize = 80;
/// Over what EC2's rate asks for (issue 6).
const OVER: f64 = 1.1;
/// How long the first and the last take by themselves; of a thousand it is nothing.
const STARTS: Duration = Duration::from_secs(5);
/// The same of few while the other lanes of `cargo verify` have the processors: whether the rate is used up is told by a thousand.
const BUSY: Duration = Duration::from_secs(30);
/// A thousand equal claims have their instances within this time (issue 6).
const THOUSAND: (usize, Duration) = (1000, Duration::from_secs(60));
/// What a lost answer may have launched is looked for for two minutes: a claim that goes sooner was not in doubt.
const UNHEARD: Duration = Duration::from_secs(115);
/// How long may take what needs many calls: CreateTags comes ten times a second, and a hundred times at once, and other lanes have the processors.
const CROWDED: Duration = Duration::from_secs(240);
/// For how long what a lost call may have launched is looked for here; two minutes in real life.
const LISTING: &str = "6s";

/// A class whose nodes never join, and claims for it that all ask for the same.
struct Crowd<'s> {
    stand: &'s Stand,
    claims: Api<NodeClaim>,
    named: String,
}

impl<'s> Crowd<'s> {
    /// Makes the class and the pool, under whose name EC2 knows the instances, and waits until the controller says that the class is ready.
    async fn prepare(stand: &'s Stand) -> Self {
        let (classes, name) = (Api::<Ec2NodeClass>::all(stand.client.clone()), &stand.name);
        let own = classes.get(name).await.expect("the stand's class");
        let mut spec = serde_json::to_value(own.spec).expect("plain data");
        spec["instanceProfile"] = json!(stand.aws.stranger().await);
        let class = format!("{name}-crowd");
        create::<Ec2NodeClass>(&classes, json!({ "metadata": { "name": class }, "spec": spec })).await;
        stand.pool(&["on-demand"]).await;
        until("the class is ready", async || {
            let status = classes.get(&class).await.ok().and_then(|class| class.status);
            status.is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
        })
        .await;
        Self::of(stand)
    }

    /// Finds a crowd that was prepared.
    fn of(stand: &'s Stand) -> Self {
        Self { stand, claims: Api::all(stand.client.clone()), named: format!("{}-crowd", stand.name) }
    }

    /// Makes so many claims, each for its own types, where EC2's published rates hold; answers how long it took to make them, and until the last had
    /// its instance.
    async fn launch_at_rates(&self, count: usize, types: impl Fn(usize) -> [String; 2]) -> (Duration, Duration) {
        hold_to_rates(self.stand);
        let begin = Instant::now();
        self.come_for(0..count, types).await;
        let made = begin.elapsed();
        until_within(Duration::from_secs(600), "all are launched", async || self.launched().await == count).await;
        (made, begin.elapsed())
    }

    /// Makes so many claims that ask for the same.
    async fn come(&self, count: usize) {
        self.come_for(0..count, alike).await;
    }

    /// Makes the claims of these numbers, each for its own types.
    async fn come_for(&self, numbers: Range<usize>, types: impl Fn(usize) -> [String; 2]) {
        let one = |at: usize| {
            json!({
                "metadata": { "name": format!("{}-{at:04}", self.stand.name), "labels": { (labels::NODE_POOL): self.stand.name } },
                "spec": {
                    "nodeClassRef": { "group": labels::AWS_GROUP, "kind": "EC2NodeClass", "name": self.named },
                    "requirements": [
                        { "key": labels::INSTANCE_TYPE, "operator": "In", "values": types(at) },
                        { "key": labels::CAPACITY_TYPE, "operator": "In", "values": ["on-demand"] },
                    ],
                    "resources": { "requests": { "cpu": "1", "pods": "4" } },
                },
            })
        };
        for from in numbers.clone().step_by(20) {
            let some = (from..numbers.end.min(from + 20)).map(|at| create::<NodeClaim>(&self.claims, one(at)));
            join_all(some).await;
        }
    }

    async fn all(&self) -> Vec<NodeClaim> {
        let ours = ListParams::default().labels(&format!("{}={}", labels::NODE_POOL, self.stand.name));
        self.claims.list(&ours).await.expect("claims").items
    }

    /// Asserts that all volumes of the pool are told their claims, as instances are.
    fn volumes_are_told(&self) {
        let filter = format!("Filter.1.Name=tag:{}&Filter.1.Value.1={}", labels::NODE_POOL, self.stand.name);
        let listed = self.stand.aws.ec2(&format!("Action=DescribeVolumes&{filter}"));
        let tagged = |key: &str| listed.matches(&format!("<key>{key}</key>")).count();
        let (all, of_batches) = (tagged(labels::NODE_POOL), tagged(BATCH));
        assert!(all > 0 && of_batches > 0, "{all} volumes, {of_batches} of batches");
        assert_eq!((tagged("karpenter.sh/nodeclaim"), tagged("Name")), (all, all), "{listed}");
    }

    async fn launched(&self) -> usize {
        self.all().await.iter().filter(|claim| !instance_of(claim).is_empty()).count()
    }

    fn instances(&self) -> Vec<Value> {
        self.stand.aws.instances(&self.stand.name)
    }

    /// The CreateFleet calls for these claims, dry runs left out.
    fn calls(&self) -> Vec<Value> {
        let calls = self.stand.aws.calls("CreateFleet");
        let ours =
            |call: &Value| call["params"].to_string().contains(&self.stand.name) && call["params"]["DryRun"].is_null();
        calls.into_iter().filter(ours).collect()
    }

    /// Asserts that each claim has an instance of its own and that nothing else was ever launched; all instances are told whose they are.
    async fn each_has_its_own(&self, count: usize) {
        let claims = self.all().await;
        let ids: BTreeSet<String> = claims.iter().map(instance_of).collect();
        assert_eq!((claims.len(), ids.len()), (count, count), "no two claims go by one instance");
        let instances = self.instances();
        let made: BTreeSet<&str> = instances.iter().map(|one| one["id"].as_str().expect("an id")).collect();
        assert_eq!(made, ids.iter().map(String::as_str).collect(), "nothing was launched for nobody");
        let owners: BTreeMap<String, String> =
            claims.iter().map(|claim| (instance_of(claim), claim.name_any())).collect();
        until_within(CROWDED, "all instances are told their claims", async || {
            self.instances().iter().all(|one| {
                let owner = &owners[one["id"].as_str().expect("an id")];
                one["tags"]["karpenter.sh/nodeclaim"] == json!(owner) && one["tags"]["Name"] == json!(owner)
            })
        })
        .await;
    }

    /// Ends all claims, and waits until their instances end and the class is gone, so that no other controller meets it.
    async fn go(&self) {
        for claim in self.all().await {
            end(&self.claims, &claim.name_any()).await;
        }
        until_within(CROWDED, "all claims are gone", async || self.all().await.is_empty()).await;
        assert!(self.instances().iter().all(is_ending), "{:?}", self.instances());
        let classes = Api::<Ec2NodeClass>::all(self.stand.client.clone());
        end(&classes, &self.named).await;
        until("the class is gone", async || classes.get_opt(&self.named).await.is_ok_and(|left| left.is_none())).await;
    }
}

/// The same types for every claim.
fn alike(_: usize) -> [String; 2] {
    ["m5.large", "m5a.large"].map(str::to_owned)
}

/// EC2's published rates hold at the emulator.
fn hold_to_rates(stand: &Stand) {
    let rate = |rate: Rate| json!({ "per_second": 1.0 / rate.every.as_secs_f64(), "burst": rate.burst });
    let rates = json!({
        "CreateFleet": rate(Rate::CREATE_FLEET),
        "CreateTags": rate(Rate::CREATE_TAGS),
        "TerminateInstances": rate(Rate::TERMINATE_INSTANCES),
        "DescribeInstances": rate(Rate::DESCRIBE),
    });
    stand.aws.door("rates", &rates);
}

#[tokio::test]
async fn claims_that_ask_for_the_same_are_launched_together() {
    let Some(mut stand) = Stand::open("together").await else { return };
    let count = many(CLAIMS);
    stand.start();
    let crowd = Crowd::prepare(&stand).await;
    let (made, took) = crowd.launch_at_rates(count, alike).await;
    let calls = crowd.calls();
    let throttled = calls.iter().filter(|call| !call["error"].is_null()).count();
    println!(
        "figure: {count} equal NodeClaims (made within {made:.1?}) have their instances after {took:.1?}, by {} CreateFleet calls, of which {throttled} were throttled",
        calls.len()
    );
    let (many, within) = THOUSAND;
    assert!(count != many || took <= within, "{count} equal NodeClaims took {took:?}");
    // between a token and its call a batch is written on its claims: on a busy machine some calls bunch
    assert!(throttled <= 1 + calls.len() / 20, "EC2 throttled {throttled} of {} calls", calls.len());
    let together = count - BURST.min(count);
    assert!(calls.len() < BURST + together / 2, "{} calls", calls.len());
    crowd.each_has_its_own(count).await;
    crowd.volumes_are_told();
    let mut tagged = stand.aws.calls("CreateTags");
    // others have theirs refused on purpose
    tagged.retain(|call| call["params"].to_string().contains(&stand.name));
    let named = tagged.iter().filter(|call| call["error"].is_null()).count();
    assert!(named > 0 && tagged.len() - named <= 1 + named / 20, "{named} of {} calls", tagged.len());
    crowd.go().await;
    stand.leave().await;
}

/// Returns how many claims come: what `KARP_TOGETHER` says, a thousand under `KARP_DEEP`, otherwise a few.
fn many(few: usize) -> usize {
    let said = std::env::var("KARP_TOGETHER").ok().map(|count| count.parse().expect("a number"));
    said.unwrap_or(if std::env::var_os("KARP_DEEP").is_some() { THOUSAND.0 } else { few })
}

/// Two types, another pair for each number: 48 types make 1,128 pairs.
fn pair(number: usize) -> [String; 2] {
    let families = ["m5", "m5a", "m6a", "m6i", "m7i", "c5", "c5a", "c6a", "c6i", "r5", "r5a", "r6i"];
    let sizes = ["large", "xlarge", "2xlarge", "4xlarge"];
    let name = |at: usize| format!("{}.{}", families[at / sizes.len()], sizes[at % sizes.len()]);
    let count = families.len() * sizes.len();
    let mut pairs = (0..count).flat_map(|one| (one + 1..count).map(move |other| [one, other]));
    pairs.nth(number).expect("so many pairs").map(name)
}

/// No two claims ask for the same: each needs a call of its own, and no call waits longer than EC2's rate asks for.
#[tokio::test]
async fn claims_that_differ_are_launched_as_fast_as_ec2_allows() {
    let Some(mut stand) = Stand::open("apart").await else { return };
    let count = many(APART);
    stand.start();
    let crowd = Crowd::prepare(&stand).await;
    let (made, took) = crowd.launch_at_rates(count, pair).await;
    let calls = crowd.calls();
    let rate = Rate::CREATE_FLEET;
    let least = rate.every * u32::try_from(count.saturating_sub(BURST)).expect("a small number");
    println!(
        "figure: {count} different NodeClaims (made within {made:.1?}) have their instances after {took:.1?}, {:.2} of the {least:.1?} that EC2's rate asks for, by {} calls",
        took.as_secs_f64() / least.as_secs_f64(),
        calls.len()
    );
    assert!(calls.len() >= count, "each has a call of its own: {}", calls.len());
    let starts = if count > APART { STARTS } else { BUSY };
    assert!(took <= least.mul_f64(OVER) + starts, "{took:?}, EC2's rate asks for {least:?}");
    crowd.each_has_its_own(count).await;
    crowd.go().await;
    stand.leave().await;
}

/// EC2 has less than a batch asks for: those who get nothing are given up at once, since nothing of theirs can turn up.
#[tokio::test]
async fn a_batch_that_gets_less_gives_the_others_up_at_once() {
    let Some(mut stand) = Stand::open("partial").await else { return };
    // in each zone one for a call
    stand
        .aws
        .door("capacity", &json!([{ "instance_type": "m5.large", "available": 1 }, { "instance_type": "m5a.large" }]));
    stand.start();
    let crowd = Crowd::prepare(&stand).await;
    let begin = Instant::now();
    crowd.come(CLAIMS).await;
    until_within(CROWDED, "some are given up, and nobody waits", async || {
        let claims = crowd.all().await;
        claims.len() < CLAIMS && claims.iter().all(|claim| !instance_of(claim).is_empty())
    })
    .await;
    assert!(begin.elapsed() < UNHEARD, "what was refused is not looked for");
    let count = crowd.all().await.len();
    let batched = crowd.instances().iter().filter(|one| !one["tags"][BATCH].is_null()).count();
    println!("{count} of {CLAIMS} claims got an instance, {batched} of them by batches");
    assert!(count >= BURST && batched > 0, "batches got what there was: {count}, {batched}");
    crowd.each_has_its_own(count).await;
    crowd.go().await;
    stand.leave().await;
}

/// The controller is killed while EC2 has launched and the answers are on their way, again between a batch's record and its call, and before its
/// instances are told whose they are.
#[tokio::test]
async fn a_crash_in_the_middle_of_a_batch_loses_nothing_and_launches_nothing_twice() {
    let Some(mut stand) = Stand::open("batch").await else { return };
    let settings = [("KARP_LAUNCH_LISTING", LISTING)];
    stand.start_with(&settings);
    {
        let crowd = Crowd::prepare(&stand).await;
        // what is launched together is seen late, too
        stand.aws.door("hide", &json!([{ "where": stand.name, "young_seconds": 3 }]));
        stand.aws.door("hold", &json!({ "action": "CreateFleet" }));
        crowd.come(EACH).await;
        until_within(CROWDED, "a batch is launched", async || {
            crowd.instances().iter().any(|one| !one["tags"][BATCH].is_null())
        })
        .await;
        assert_eq!(crowd.launched().await, 0, "no answer has come");
    }
    stand.crash();
    stand.aws.door("release", &json!({ "action": "CreateFleet" }));
    // the batches that begin now are of claims that come now: their calls fail, and the controller is killed again
    // for longer than the wait for the lease and all adoptions, whatever else the machine does; the reset below ends it
    stand.aws.door("throttle", &json!({ "CreateFleet": { "seconds": 2 * CROWDED.as_secs() } }));
    // instances of batches cannot be told their claims until the controller has been killed once more
    let mute = json!([{ "action": "CreateTags", "where": stand.name, "times": 100_000 }]);
    stand.aws.door("fail", &mute);
    stand.start_with(&settings);
    Crowd::of(&stand).come_for(EACH..2 * EACH, alike).await;
    let pending = async |stand: &Stand| {
        let claims: Vec<NodeClaim> = stand.mine().await;
        claims.iter().filter(|claim| instance_of(claim).is_empty() && batch(claim).is_some()).count()
    };
    until_within(CROWDED, "what was launched is adopted, and a batch waits", async || {
        let launched = stand.mine::<NodeClaim>().await.iter().filter(|claim| !instance_of(claim).is_empty()).count();
        launched == stand.aws.instances(&stand.name).len() && pending(&stand).await > 0
    })
    .await;
    stand.crash();
    stand.aws.door("reset-faults", &json!({}));
    stand.aws.door("fail", &mute);
    stand.start_with(&settings);
    {
        let crowd = Crowd::of(&stand);
        until_within(CROWDED, "all are launched", async || crowd.launched().await == 2 * EACH).await;
        let untold = |one: &Value| !one["tags"][BATCH].is_null() && one["tags"]["karpenter.sh/nodeclaim"].is_null();
        assert!(crowd.instances().iter().any(untold), "all were told whose they are: {:?}", crowd.instances());
    }
    stand.crash();
    stand.aws.door("reset-faults", &json!({}));
    stand.start_with(&settings);
    let crowd = Crowd::of(&stand);
    crowd.each_has_its_own(2 * EACH).await;
    crowd.go().await;
    stand.leave().await;
}
