//! The provider against the sandbox's AWS. Without `KARP_TEST_AWS_ENDPOINT` each test says that it is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Parser;
use jiff::SignedDuration;
use karp_aws::config::{AccessKeys, Service};
use karp_aws::selector::Term;
use karp_domain::api::{AmiFamily, ConnectionTracking, conditions};
use karp_domain::catalogue::{CapacityType, RankedOffering};
use karp_domain::requirement::Requirements;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::templates::{IDLE, TRUST};
use super::*;

const ENDPOINT: &str = "KARP_TEST_AWS_ENDPOINT";
const CLUSTER: &str = "KARP_TEST_CLUSTER";
const REGION: &str = "KARP_TEST_REGION";

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
}

/// Makes the provider for the emulator's cluster; `None` where there is no emulator.
async fn provider(test: &str) -> Option<Aws> {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        println!("{test} skipped: sandbox not built ({ENDPOINT} is not set; `cargo verify` sets it)");
        return None;
    };
    let keys = AccessKeys { access_key_id: "test".into(), secret_access_key: "test".into(), session_token: None };
    let settings = Settings {
        region: Some(std::env::var(REGION).unwrap_or_else(|_| "us-east-1".to_owned())),
        access_keys: Some(keys),
        endpoints: Service::ALL.into_iter().map(|service| (service, endpoint.clone())).collect(),
        ..Settings::default()
    };
    let clients = Clients::load(&settings).await.expect("settings are complete");
    let cluster = match std::env::var(CLUSTER) {
        Ok(name) => name,
        Err(_) => clusters(&clients).await,
    };
    let queue = format!("{test}-{}", std::process::id());
    let arguments = ["karp", "--cluster-name", &cluster, "--interruption-queue", &queue, "--cluster-ca-bundle", "Q0E="];
    let options = Command::parse_from(arguments).options;
    let prices = PriceList::new(clients.clone(), false, None);
    let market = Market::new(clients.clone(), prices, PriceFile::default(), Memory::new(None));
    Some(Aws::with(clients, &options, market))
}

async fn clusters(clients: &Clients) -> String {
    let listed =
        aws_sdk_eks::Client::new(&clients.config_for(Service::Eks)).list_clusters().send().await.expect("listed");
    listed.clusters().first().expect("the emulator has a cluster").clone()
}

/// A node class over the emulator's own subnets and node group.
async fn class(aws: &Aws, name: &str) -> Ec2NodeClass {
    let found = subnets::find(&aws.clients, &[Term::tag("Name", "*")]).await.expect("subnets");
    let ids: Vec<_> = found.iter().map(|subnet| serde_json::json!({ "id": subnet.id })).collect();
    let spec = serde_json::json!({
        "amiSelectorTerms": [{ "alias": "al2023@latest" }],
        "subnetSelectorTerms": ids,
        "securityGroupSelectorTerms": [{ "name": format!("{}-node", aws.cluster_name) }],
        "instanceProfile": profile(&aws.clients, name).await,
    });
    let mut class = Ec2NodeClass::new(name, serde_json::from_value(spec).expect("a spec"));
    let resolved = aws.resolve(&class).await.expect("resolved");
    assert!(resolved.problems.is_empty(), "{:?}", resolved.problems);
    assert_eq!(resolved.amis.len(), 5);
    class.status = Some(karp_domain::api::Ec2NodeClassStatus {
        subnets: resolved.subnets,
        security_groups: resolved.security_groups,
        capacity_reservations: Vec::new(),
        amis: resolved.amis,
        instance_profile: resolved.instance_profile,
        conditions: Vec::new(),
    });
    class
}

/// Makes an instance profile, as the Terraform provider does.
async fn profile(clients: &Clients, name: &str) -> String {
    let name = format!("{name}-{}", std::process::id());
    let iam = aws_sdk_iam::Client::new(&clients.config_for(Service::Iam));
    let trust = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}"#;
    iam.create_role().role_name(&name).assume_role_policy_document(trust).send().await.expect("a role");
    iam.create_instance_profile().instance_profile_name(&name).send().await.expect("a profile");
    iam.add_role_to_instance_profile().role_name(&name).instance_profile_name(&name).send().await.expect("joined");
    name
}

fn claim(name: &str) -> NodeClaim {
    let mut claim = NodeClaim::new(name, karp_domain::api::NodeClaimSpec::default());
    claim.metadata.uid = Some(format!("{name}-{}", std::process::id()));
    claim.metadata.labels = Some(BTreeMap::from([(labels::NODE_POOL.to_owned(), "default".to_owned())]));
    claim
}

async fn offerings(aws: &Aws, class: &Ec2NodeClass, capacity_type: CapacityType) -> Vec<RankedOffering> {
    let catalogue = aws.catalogue(class).await.expect("a catalogue");
    let (types, market) = catalogue.select(&Requirements::default());
    let mut ranked = catalogue.ranked(&types, market);
    ranked.retain(|one| one.capacity_type == capacity_type && one.instance_type.starts_with("m5."));
    assert!(!ranked.is_empty());
    ranked
}

#[tokio::test]
async fn a_claim_is_launched_once_found_and_ended() {
    let Some(aws) = provider("launched").await else { return };
    let class = class(&aws, "launched").await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    assert!(catalogue.types().len() > 500, "{}", catalogue.types().len());
    let estimated = catalogue.types().iter().flat_map(|kind| &kind.offerings).filter(|one| one.is_estimated()).count();
    assert_eq!(estimated, 0, "every price is known in the sandbox");
    assert!(
        Arc::ptr_eq(&catalogue, &aws.catalogue(&class).await.expect("the same")),
        "nothing changed, nothing is built"
    );

    let claim = claim("default-once");
    let offerings = offerings(&aws, &class, CapacityType::Spot).await;
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let prepared = aws.prepare(&order).await.expect("prepared");
    let again = aws.prepare(&order).await.expect("prepared again");
    assert_eq!(prepared.digest, again.digest, "the same order, the same request");
    let launched = aws.launch(&prepared, Token::free()).await.expect("launched").instance;
    let repeated = aws.launch(&again, Token::free()).await.expect("repeated").instance;
    assert_eq!(launched, repeated, "one token, one instance");
    assert_eq!((launched.capacity_type, launched.claim.as_deref()), (CapacityType::Spot, Some("default-once")));
    assert!(launched.image_id.starts_with("ami-"));

    let fewer = LaunchOrder { offerings: &offerings[1..], ..order };
    let changed = aws.prepare(&fewer).await.expect("prepared");
    assert_ne!(changed.digest, prepared.digest);
    assert!(matches!(aws.launch(&changed, Token::free()).await, Err(LaunchError::TokenReused(_))), "list and adopt");
    let found = aws.find(&claim).await.expect("found");
    assert_eq!(found.iter().map(|one| &one.provider_id).collect::<Vec<_>>(), [&launched.provider_id]);
    assert_eq!(found[0].image_id, launched.image_id, "the image that was said is the one that runs");
    assert!(aws.list().await.expect("listed").iter().any(|one| one.provider_id == launched.provider_id));

    let mut placed = claim.clone();
    placed.status = Some(karp_domain::api::NodeClaimStatus {
        provider_id: Some(launched.provider_id.clone()),
        image_id: Some(launched.image_id.clone()),
        ..Default::default()
    });
    placed.labels_mut().insert(labels::ARCH.to_owned(), "amd64".to_owned());
    assert_eq!(aws.drift(&placed, &class).await.expect("looked"), None);
    let mut renewed = class.clone();
    for image in &mut renewed.status.as_mut().expect("a status").amis {
        image.id.push('x');
    }
    assert_eq!(aws.drift(&placed, &renewed).await.expect("looked").as_deref(), Some("AMIDrift"));

    let mut end = aws.terminate(&launched.provider_id).await.expect("ended");
    for _ in 0..50 {
        if end == Termination::Gone {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        end = aws.terminate(&launched.provider_id).await.expect("ended");
    }
    assert_eq!(end, Termination::Gone);
    assert_eq!(aws.get(&launched.provider_id).await.expect("looked"), Presence::Gone);

    aws.release(&class).await.expect("released");
    let left = launch_template::list(&aws.clients, &class::ownership(&aws.cluster_name, "launched")).await;
    assert!(left.expect("listed").is_empty(), "no launch template is left behind");
}

/// Seconds that this thread has had a processor: the first field of its schedstat, in nanoseconds.
fn processor_seconds() -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    let nanoseconds: u64 = told.split(' ').next().and_then(|field| field.parse().ok()).expect("nanoseconds");
    Duration::from_nanos(nanoseconds).as_secs_f64()
}

#[tokio::test]
async fn a_refresh_of_types_and_prices_takes_little_of_a_processor() {
    let Some(aws) = provider("refresh").await else { return };
    let class = class(&aws, "refresh").await;
    let first = aws.catalogue(&class).await.expect("a catalogue");
    let status = class.status.clone().unwrap_or_default();
    let key = aws.key(&class, &status.subnets, status.amis, &[]).await.expect("a key");
    let prices = PriceList::new(aws.clients.clone(), false, None);
    let fresh = Market::new(aws.clients.clone(), prices, PriceFile::default(), Memory::new(None));
    let before = processor_seconds();
    // all that goes on runs on this one thread
    let second = fresh.catalogue("refresh", key).await.expect("a catalogue");
    let took = processor_seconds() - before;
    println!("types, zones and prices read anew, and a catalogue of {} types: {took:.2} s", second.types().len());
    assert_eq!(first.types(), second.types());
    assert!(took <= 2.0, "{took:.2} s of a processor, 2 are allowed");
    aws.release(&class).await.expect("released");
}

/// Answers the ids in each call of TerminateInstances that names one of these.
async fn terminations(of: &[String]) -> Vec<usize> {
    let calls: Vec<serde_json::Value> = serde_json::from_str(&door("GET", "calls", "").await).expect("JSON");
    let ended = calls.iter().filter(|call| call["action"] == "TerminateInstances");
    let named = ended.map(|call| {
        let params = call["params"].to_string();
        of.iter().filter(|id| params.contains(id.as_str())).count()
    });
    named.filter(|count| *count > 0).collect()
}

#[tokio::test]
async fn instances_are_described_and_ended_together() {
    let Some(aws) = provider("together").await else { return };
    let class = class(&aws, "together").await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let claims: Vec<NodeClaim> = (0..6).map(|number| claim(&format!("default-together-{number}"))).collect();
    let mut ids = Vec::new();
    for claim in &claims {
        let order = LaunchOrder { claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
        let prepared = aws.prepare(&order).await.expect("prepared");
        ids.push(aws.launch(&prepared, Token::free()).await.expect("launched").instance.provider_id);
    }
    let found = futures::future::join_all(claims.iter().map(|claim| aws.find(claim))).await;
    let found: Vec<Vec<String>> =
        found.into_iter().map(|one| one.expect("found").into_iter().map(|one| one.provider_id).collect()).collect();
    assert_eq!(found, ids.iter().map(|id| vec![id.clone()]).collect::<Vec<_>>(), "each its own");

    let unknown = "aws:///us-east-1a/i-0123456789abcdef0".to_owned();
    assert_eq!(aws.get(&unknown).await.expect("looked"), Presence::Unknown);
    let all: Vec<String> = ids.iter().cloned().chain([unknown]).collect();
    let answers = futures::future::join_all(all.iter().map(|id| aws.terminate(id))).await;
    let answers: Vec<Termination> = answers.into_iter().map(|one| one.expect("asked")).collect();
    assert_eq!(answers[6], Termination::Unknown, "it may have been launched a moment ago");
    assert_eq!(answers[..6], [Termination::InProgress; 6]);
    let short: Vec<String> = ids.iter().filter_map(|id| instances::instance_id(id)).map(str::to_owned).collect();
    let counts = terminations(&short).await;
    assert_eq!(counts, [6, 6], "with the unknown one, and again without it");
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn instances_on_a_page_that_fails_are_not_taken_for_gone() {
    let Some(mut aws) = provider("pages").await else { return };
    let class = class(&aws, "pages").await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    // what is tagged as another cluster's is on lists that no other test has
    aws.cluster_name = format!("pages-{}", std::process::id());
    let mut ids = Vec::new();
    for number in 0..3 {
        let claim = claim(&format!("default-pages-{number}"));
        let order =
            LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
        let prepared = aws.prepare(&order).await.expect("prepared");
        ids.push(aws.launch(&prepared, Token::free()).await.expect("launched").instance.provider_id);
    }
    let listed = async || -> Result<BTreeSet<String>, CloudError> {
        Ok(aws.list().await?.into_iter().map(|one| one.provider_id).collect())
    };
    let found = async || futures::future::join_all(ids.iter().map(|id| aws.get(id))).await;
    door("POST", "settings", r#"{ "instance_page": 1 }"#).await;
    assert_eq!(listed().await.expect("listed"), ids.iter().cloned().collect(), "page by page");
    let present = |one: Result<Presence, CloudError>| one.expect("looked").instance().is_some();
    assert!(found().await.into_iter().all(present), "they are described page by page, too");
    // the pages of lists, and of instances that are asked for by their ids
    for kind in ["listed", "named"] {
        let first = instance_id(&ids[0]).expect("an id");
        refuse("DescribeInstances", &format!("{kind}-{first}"), "UnauthorizedOperation").await;
    }
    assert!(listed().await.is_err(), "half a list is none");
    for one in found().await {
        assert!(!matches!(one, Ok(Presence::Gone | Presence::Unknown)), "{one:?}");
    }
    assert_eq!(listed().await.expect("listed").len(), 3);
    door("POST", "settings", r#"{ "instance_page": 0 }"#).await;
    for id in &ids {
        aws.terminate(id).await.expect("ended");
    }
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn what_a_class_cannot_be_is_said_condition_by_condition() {
    let Some(aws) = provider("conditions").await else { return };
    let spec = serde_json::json!({
        "role": "no-such-role",
        "amiSelectorTerms": [{ "alias": "bottlerocket@latest" }],
        "subnetSelectorTerms": [{ "tags": { "nobody": "has-this" } }],
        "securityGroupSelectorTerms": [{ "id": "sg-00000000000000000" }],
        "userData": "#!/bin/sh\necho no TOML",
    });
    let class = Ec2NodeClass::new("conditions", serde_json::from_value(spec).expect("a spec"));
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    let said: BTreeMap<_, _> = problems.iter().map(|problem| (problem.condition, problem.reason.as_str())).collect();
    let expected = [
        (conditions::SUBNETS_READY, "SubnetsNotFound"),
        (conditions::SECURITY_GROUPS_READY, "SecurityGroupsNotFound"),
        (conditions::INSTANCE_PROFILE_READY, "NodeRoleNotFound"),
        (conditions::VALIDATION_SUCCEEDED, "UserDataInvalid"),
    ];
    assert_eq!(said, BTreeMap::from(expected), "{problems:?}");
}

#[tokio::test]
async fn a_role_gets_a_profile_of_its_own_until_the_class_goes() {
    let Some(aws) = provider("role").await else { return };
    let mut class = class(&aws, "role").await;
    let role = class.spec.instance_profile.take().expect("a role of the profile's name");
    let iam = aws.clients.iam();
    class.metadata.uid = Some(format!("uid-{}", std::process::id()));
    class.spec.role = Some(format!("some/path/{role}"));
    let resolved = aws.resolve(&class).await.expect("resolved");
    assert!(resolved.problems.is_empty(), "{:?}", resolved.problems);
    let name = resolved.instance_profile.expect("a profile");
    let answer = iam.get_instance_profile().instance_profile_name(&name).send().await.expect("it is there");
    let made = answer.instance_profile().expect("a profile");
    assert_eq!(made.roles().iter().map(|one| one.role_name()).collect::<Vec<_>>(), [role.as_str()]);
    let region = aws.clients.region();
    let path = format!("/karpenter/{region}/{}/uid-{}/", aws.cluster_name, std::process::id());
    assert_eq!(made.path(), path);
    let tags: BTreeMap<&str, &str> = made.tags().iter().map(|tag| (tag.key(), tag.value())).collect();
    assert_eq!(tags.get("karpenter.k8s.aws/ec2nodeclass"), Some(&"role"));
    assert_eq!(tags.get(format!("kubernetes.io/cluster/{}", aws.cluster_name).as_str()), Some(&"owned"));

    class.status.as_mut().expect("a status").instance_profile = Some(name.clone());
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-role");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let launched =
        aws.launch(&aws.prepare(&order).await.expect("prepared"), Token::free()).await.expect("launched").instance;
    let running = aws.describe(instance_id(&launched.provider_id).expect("an id")).await.expect("described");
    assert_eq!(running.and_then(|one| one.instance_profile).as_deref(), Some(name.as_str()));

    let other = profile(&aws.clients, "role-other").await;
    class.spec.role = Some(other.clone());
    let changed = aws.resolve(&class).await.expect("resolved").instance_profile.expect("a profile");
    assert_ne!(changed, name, "running instances keep the profile that they have");
    let of_class = async || {
        let found = karp_aws::instance_profiles::list(&aws.clients, &path).await.expect("listed");
        found.into_iter().map(|profile| profile.name).collect::<BTreeSet<_>>()
    };
    let both = BTreeSet::from([name.clone(), changed.clone()]);
    assert_eq!(of_class().await, both, "too young to be collected");
    // each time as another process, which lists them at once
    let collect = async |hours: i64| {
        let now = Timestamp::now() + SignedDuration::from_hours(hours);
        Profiles::default().collect(&aws.clients, &aws.cluster_name, &class, &changed, now).await;
        of_class().await
    };
    assert_eq!(collect(0).await, both, "young ones may be named by a launch that is not listed yet");
    assert_eq!(collect(2).await, both, "an instance has the former one");
    aws.terminate(&launched.provider_id).await.expect("ended");
    let mut left = both;
    for _ in 0..50 {
        left = collect(2).await;
        if left.len() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(left, BTreeSet::from([changed]), "what no instance has is gone, and the current one stays");

    class.spec.role = Some("no-such-role".to_owned());
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    let reasons: Vec<_> = problems.iter().map(|problem| (problem.condition, problem.reason.as_str())).collect();
    let expected = [
        (conditions::INSTANCE_PROFILE_READY, "NodeRoleNotFound"),
        (conditions::VALIDATION_SUCCEEDED, "DependenciesNotReady"),
    ];
    assert_eq!(reasons, expected);

    // it names a profile itself by now, which its status says: what was made for it goes with it all the same
    class.spec.role = None;
    class.spec.instance_profile = Some(other.clone());
    class.metadata.annotations = Some(aws.marks(&class));
    class.status.as_mut().expect("a status").instance_profile = Some(other);
    aws.release(&class).await.expect("released");
    let left = karp_aws::instance_profiles::list(&aws.clients, &path).await.expect("listed");
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_missing_right_or_placement_group_is_a_condition() {
    let Some(aws) = provider("validation").await else { return };
    let mut class = class(&aws, "validation").await;
    class.spec.placement_group_selector =
        Some(PlacementGroupSelector { name: Some("no-such-group".to_owned()), id: None });
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    let said: BTreeMap<_, _> = problems.iter().map(|problem| (problem.condition, problem.reason.as_str())).collect();
    assert_eq!(said.get(conditions::PLACEMENT_GROUP_READY), Some(&"PlacementGroupNotFound"), "{problems:?}");
    class.spec.placement_group_selector = None;

    class.spec.instance_profile = Some("no-such-profile".to_owned());
    let resolved = aws.resolve(&class).await.expect("resolved");
    let reasons: Vec<_> = resolved.problems.iter().map(|problem| problem.reason.as_str()).collect();
    assert_eq!(reasons, ["InstanceProfileNotFound"]);
    assert!(resolved.look_again.is_some(), "it may be too fresh for EC2 to know it");

    class.spec.instance_profile = class.status.as_ref().and_then(|status| status.instance_profile.clone());
    class.spec.user_data = Some("#!/bin/sh\n".to_owned() + &"x".repeat(20_000));
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    let reasons: Vec<_> = problems.iter().map(|problem| problem.reason.as_str()).collect();
    assert_eq!(reasons, ["UserDataSizeLimitExceeded"]);
    aws.release(&class).await.expect("released");
}

/// Makes the next call of an action fail that has this text in a parameter.
async fn refuse(action: &str, text: &str, code: &str) {
    let rule = serde_json::json!([{ "action": action, "where": text, "code": code, "status": 403 }]);
    door("POST", "fail", &rule.to_string()).await;
}

#[tokio::test]
async fn each_thing_that_a_class_lacks_has_its_condition_and_reason() {
    use conditions::{
        AMIS_READY, CAPACITY_RESERVATIONS_READY, INSTANCE_PROFILE_READY, PLACEMENT_GROUP_READY, SECURITY_GROUPS_READY,
        SUBNETS_READY, VALIDATION_SUCCEEDED,
    };
    let Some(aws) = provider("reasons").await else { return };
    let good = class(&aws, "reasons").await;
    let groups = serde_json::json!([{ "id": "pg-reasons", "name": "reasons", "state": "pending" }]);
    door("POST", "placement-groups", &groups.to_string()).await;
    let (denied, odd) = ("UnauthorizedOperation", "InvalidParameterValue");
    let by_tag = |field: &str, name: &str| serde_json::json!({ field: [{ "tags": { "karp-test": name } }] });
    let images = |name: &str| serde_json::json!({ "amiFamily": "AL2023", "amiSelectorTerms": [{ "tags": { "karp-test": name } }] });
    let parameter =
        serde_json::json!({ "amiFamily": "AL2023", "amiSelectorTerms": [{ "ssmParameter": "/test/no-parameter" }] });
    let (subnets, groups, reserved) =
        ("subnetSelectorTerms", "securityGroupSelectorTerms", "capacityReservationSelectorTerms");
    let role = |name: &str| serde_json::json!({ "role": name, "instanceProfile": null });
    let group = serde_json::json!({ "placementGroupSelector": { "name": "reasons" } });
    let same = || serde_json::json!({});
    refuse("RunInstances", "barred-family", denied).await;
    let barred = Ec2NodeClass::new("barred-family", good.spec.clone());
    let problems = aws.resolve(&barred).await.expect("resolved").problems;
    assert!(problems.is_empty(), "a policy may bar one family of types and no other: {problems:?}");
    // the class, in which fields it is not like a good one, the call of it that fails, and what is said
    for (name, fields, call, condition, reason) in [
        ("no-fleet", same(), Some(("CreateFleet", denied)), VALIDATION_SUCCEEDED, "CreateFleetAuthCheckFailed"),
        (
            "no-template",
            same(),
            Some(("CreateLaunchTemplate", denied)),
            VALIDATION_SUCCEEDED,
            "CreateLaunchTemplateAuthCheckFailed",
        ),
        ("no-run", same(), Some(("RunInstances", denied)), VALIDATION_SUCCEEDED, "RunInstancesAuthCheckFailed"),
        ("no-subnet", by_tag(subnets, "no-subnet"), Some(("DescribeSubnets", denied)), SUBNETS_READY, "Unauthorized"),
        ("odd-subnet", by_tag(subnets, "odd-subnet"), Some(("DescribeSubnets", odd)), SUBNETS_READY, "LookupFailed"),
        (
            "no-group",
            by_tag(groups, "no-group"),
            Some(("DescribeSecurityGroups", denied)),
            SECURITY_GROUPS_READY,
            "Unauthorized",
        ),
        ("no-image", images("no-image"), Some(("DescribeImages", denied)), AMIS_READY, "Unauthorized"),
        ("no-parameter", parameter, Some(("GetParameter", "AccessDeniedException")), AMIS_READY, "Unauthorized"),
        ("none-such", images("none-such"), None, AMIS_READY, "AMINotFound"),
        (
            "no-reserved",
            by_tag(reserved, "no-reserved"),
            Some(("DescribeCapacityReservations", denied)),
            CAPACITY_RESERVATIONS_READY,
            "Unauthorized",
        ),
        (
            "odd-reserved",
            by_tag(reserved, "odd-reserved"),
            Some(("DescribeCapacityReservations", odd)),
            CAPACITY_RESERVATIONS_READY,
            "LookupFailed",
        ),
        (
            "no-profile",
            role("no-profile"),
            Some(("CreateInstanceProfile", "AccessDenied")),
            INSTANCE_PROFILE_READY,
            "NodeRoleAuthFailure",
        ),
        (
            "many-profiles",
            role("many-profiles"),
            Some(("CreateInstanceProfile", "LimitExceeded")),
            INSTANCE_PROFILE_READY,
            "LimitExceeded",
        ),
        (
            "odd-role",
            role("odd-role"),
            Some(("AddRoleToInstanceProfile", "ValidationError")),
            INSTANCE_PROFILE_READY,
            "NodeRoleInvalid",
        ),
        ("group-to-come", group, None, PLACEMENT_GROUP_READY, "PlacementGroupNotAvailable"),
    ] {
        let mut spec = serde_json::to_value(&good.spec).expect("plain data");
        for (field, value) in fields.as_object().expect("fields") {
            spec[field] = value.clone();
        }
        spec.as_object_mut().expect("fields").retain(|_, value| !value.is_null());
        let mut class = Ec2NodeClass::new(name, serde_json::from_value(spec).expect("a spec"));
        class.metadata.uid = Some(name.to_owned());
        if let Some((action, code)) = call {
            let times = if action == "RunInstances" { validation::FAMILIES } else { 1 };
            for _ in 0..times {
                refuse(action, name, code).await;
            }
        }
        let problems = aws.resolve(&class).await.expect("resolved").problems;
        let said: BTreeMap<_, _> =
            problems.iter().map(|problem| (problem.condition, problem.reason.as_str())).collect();
        let mut expected = BTreeMap::from([(VALIDATION_SUCCEEDED, "DependenciesNotReady")]);
        expected.insert(condition, reason);
        assert_eq!(said, expected, "{name}: {problems:?}");
        aws.release(&class).await.expect("released");
    }
    door("POST", "placement-groups", "[]").await;
    aws.release(&good).await.expect("released");
}

#[tokio::test]
async fn a_cluster_without_a_range_of_services_is_a_condition() {
    let Some(aws) = provider("cidr").await else { return };
    let Some(other) = provider_of("no-cidr", |cluster| cluster.service_cidr = None).await else { return };
    let class = class(&aws, "cidr").await;
    let problems = other.resolve(&class).await.expect("resolved").problems;
    let said: Vec<_> = problems.iter().map(|problem| (problem.condition, problem.reason.as_str())).collect();
    assert_eq!(said, [(conditions::VALIDATION_SUCCEEDED, "ClusterCIDRResolutionFailed")], "{problems:?}");
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn prefixes_and_their_pods_reach_the_template() {
    let Some(aws) = provider("prefixes").await else { return };
    let mut class = class(&aws, "prefixes").await;
    class.spec.ip_prefix_count = Some(2);
    class.spec.connection_tracking =
        Some(ConnectionTracking { udp_timeout: Some(45), ..ConnectionTracking::default() });
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    assert!(problems.is_empty(), "{problems:?}");
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-prefixes");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let prepared = aws.prepare(&order).await.expect("prepared");
    let mut told = Vec::new();
    for said in templates_of(&aws, &prepared).await {
        assert_eq!((said.ipv4_prefixes, said.ipv6_prefixes, said.udp_timeout), (Some(2), None, Some(45)));
        let line = said.user_data.lines().find(|line| line.contains("maxPods")).expect("how many pods");
        told.push(line.trim().to_owned());
    }
    assert_eq!(told, ["maxPods: 110", "maxPods: 250"], "EKS's advice for small and large nodes");
    aws.release(&class).await.expect("released");
}

/// Makes the provider as if the cluster were another than the emulator's.
async fn provider_of(test: &str, change: impl FnOnce(&mut eks::Cluster)) -> Option<Aws> {
    let (aws, other) = (provider(test).await?, provider(&format!("{test}-other")).await?);
    let mut cluster = (*aws.described().await.expect("described")).clone();
    change(&mut cluster);
    other.cluster.get(|| async { Ok::<_, Error>(cluster) }).await.expect("it is known");
    Some(other)
}

/// What a launch template says.
struct Said {
    ipv4_prefixes: Option<i32>,
    ipv6_prefixes: Option<i32>,
    ipv6_addresses: Option<i32>,
    primary_ipv6: Option<bool>,
    udp_timeout: Option<i32>,
    user_data: String,
}

/// Reads the launch templates that a request names.
async fn templates_of(aws: &Aws, prepared: &Prepared) -> Vec<Said> {
    let Request::Fleet { request, .. } = &prepared.request else { panic!("a fleet") };
    let mut all = Vec::new();
    for choice in &request.choices {
        let call = aws.clients.ec2().describe_launch_template_versions().launch_template_name(&choice.launch_template);
        let answer = call.send().await.expect("described");
        let data = answer.launch_template_versions()[0].launch_template_data().expect("data");
        let [interface] = data.network_interfaces() else { panic!("one interface") };
        let text = STANDARD.decode(data.user_data().expect("user data")).expect("base64");
        all.push(Said {
            ipv4_prefixes: interface.ipv4_prefix_count(),
            ipv6_prefixes: interface.ipv6_prefix_count(),
            ipv6_addresses: interface.ipv6_address_count(),
            primary_ipv6: interface.primary_ipv6(),
            udp_timeout: interface.connection_tracking_specification().and_then(|tracking| tracking.udp_timeout()),
            user_data: String::from_utf8(text).expect("text"),
        });
    }
    all
}

/// Each family's images are found, launched from, and told what they understand.
#[tokio::test]
async fn nodes_of_each_family_run_its_image_and_are_told_in_its_words() {
    // the last version that has images of AL2
    let Some(aws) = provider_of("families", |cluster| cluster.version = "1.32".to_owned()).await else { return };
    let mut class = class(&aws, "families").await;
    let custom = class.status.as_ref().expect("a status").amis[0].id.clone();
    let alias = |name: &str| serde_json::json!([{ "alias": name }]);
    let own = serde_json::json!([{ "id": custom }]);
    let families = [
        (alias("al2@latest"), None, "/etc/eks/bootstrap.sh"),
        (alias("bottlerocket@latest"), None, "[settings.kubernetes]"),
        (alias("windows2019@latest"), None, "Start-EKSBootstrap.ps1"),
        (alias("windows2022@latest"), None, "Start-EKSBootstrap.ps1"),
        (own, Some("#!/bin/sh\njoin families\n"), "join families"),
    ];
    for (number, (terms, user_data, words)) in families.into_iter().enumerate() {
        class.spec.ami_selector_terms = serde_json::from_value(terms.clone()).expect("terms");
        class.spec.ami_family = user_data.map(|_| AmiFamily::Custom);
        class.spec.user_data = user_data.map(str::to_owned);
        let resolved = aws.resolve(&class).await.expect("resolved");
        assert!(resolved.problems.is_empty() && !resolved.amis.is_empty(), "{terms}: {:?}", resolved.problems);
        class.status.as_mut().expect("a status").amis = resolved.amis.clone();
        let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
        let catalogue = aws.catalogue(&class).await.expect("a catalogue");
        let claim = claim(&format!("default-family-{number}"));
        let order =
            LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
        let prepared = aws.prepare(&order).await.expect("prepared");
        for Said { user_data: text, .. } in templates_of(&aws, &prepared).await {
            assert!(text.contains(words), "{terms}: {text}");
            assert_eq!(text.contains(&aws.cluster_name), user_data.is_none(), "{terms}: {text}");
            assert!(user_data.is_none_or(|own| own == text), "{terms}: {text}");
        }
        let launched = aws.launch(&prepared, Token::free()).await.expect("launched").instance;
        let running = aws.describe(instance_id(&launched.provider_id).expect("an id")).await.expect("described");
        let image = running.expect("it runs").image_id;
        assert!(resolved.amis.iter().any(|one| one.id == image), "{terms}: {image}");
        aws.terminate(&launched.provider_id).await.expect("ended");
    }
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn nodes_of_an_ipv6_cluster_have_an_address_of_its_family_and_are_told_its_services() {
    let services = "fd30:1c53:5f8a::/108";
    let ipv6 = |cluster: &mut eks::Cluster| (cluster.ipv6, cluster.service_cidr) = (true, Some(services.to_owned()));
    let Some(aws) = provider_of("ipv6", ipv6).await else { return };
    let mut class = class(&aws, "ipv6").await;
    class.spec.ip_prefix_count = Some(1);
    let problems = aws.resolve(&class).await.expect("resolved").problems;
    assert!(problems.is_empty(), "{problems:?}");
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-ipv6");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let prepared = aws.prepare(&order).await.expect("prepared");
    for said in templates_of(&aws, &prepared).await {
        assert_eq!((said.ipv6_addresses, said.primary_ipv6), (Some(1), Some(true)));
        assert_eq!((said.ipv4_prefixes, said.ipv6_prefixes), (None, None), "EC2 gives an address or prefixes");
        assert!(said.user_data.contains(services), "{}", said.user_data);
    }
    let launched = aws.launch(&prepared, Token::free()).await.expect("launched").instance;
    aws.terminate(&launched.provider_id).await.expect("ended");
    aws.release(&class).await.expect("released");
}

/// Sets the emulator's capacity reservations.
async fn reserve(reservations: serde_json::Value) {
    door("POST", "reservations", &reservations.to_string()).await;
}

/// Asks at the emulator's door for tests.
async fn door(method: &str, name: &str, body: &str) -> String {
    let endpoint = std::env::var(ENDPOINT).expect("an emulator");
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let mut stream = tokio::net::TcpStream::connect(&address).await.expect("somebody listens");
    let length = body.len();
    let head = format!("{method} /_karp/{name} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.contains(" 200 "), "{answer}");
    answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn a_reservation_is_launched_into_until_it_is_full() {
    let Some(aws) = provider("reserved").await else { return };
    let mut class = class(&aws, "reserved").await;
    let zone = class.status.as_ref().expect("a status").subnets[0].zone.clone();
    let mine = serde_json::json!({ "karp-test": "reserved" });
    reserve(serde_json::json!([
        { "id": "cr-1", "instance_type": "m5.large", "zone": zone, "count": 1, "tags": mine },
        { "id": "cr-2", "instance_type": "m5.large", "zone": zone, "count": 4 },
        { "id": "cr-3", "instance_type": "m5.large", "zone": zone, "state": "expired", "tags": mine },
    ]))
    .await;
    let term = serde_json::json!([{ "tags": mine }, { "id": "cr-9" }]);
    class.spec.capacity_reservation_selector_terms = serde_json::from_value(term).expect("terms");
    let resolved = aws.resolve(&class).await.expect("resolved");
    assert!(resolved.problems.is_empty(), "{:?}", resolved.problems);
    let found = resolved.capacity_reservations.expect("it asks for some");
    let ids: Vec<_> = found.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["cr-1"], "active, and selected; an id that is nobody's selects nothing");
    class.status.as_mut().expect("a status").capacity_reservations = found;

    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let offerings = offerings(&aws, &class, CapacityType::Reserved).await;
    assert_eq!(offerings.iter().map(|one| one.reservation.as_deref()).collect::<Vec<_>>(), [Some("cr-1")]);
    let claims = ["default-reserved-1", "default-reserved-2"].map(claim);
    let order =
        LaunchOrder { claim: &claims[0], class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let prepared = aws.prepare(&order).await.expect("prepared");
    let launched = aws.launch(&prepared, Token::free()).await.expect("launched").instance;
    let taken = launched.reservation.clone().expect("it is reserved");
    assert_eq!((launched.capacity_type, taken.id.as_str()), (CapacityType::Reserved, "cr-1"));
    let listed = aws.get(&launched.provider_id).await.expect("looked").instance().expect("it is there");
    assert_eq!((listed.capacity_type, listed.reservation), (CapacityType::Reserved, Some(taken)));
    let after = aws.catalogue(&class).await.expect("a catalogue");
    let open: Vec<bool> = after.reservations().map(|(_, one)| one.available).collect();
    assert_eq!(open, [false], "it is taken off before EC2 is asked again");

    let second = LaunchOrder { claim: &claims[1], ..order };
    match aws.launch(&aws.prepare(&second).await.expect("prepared"), Token::free()).await {
        Err(LaunchError::InsufficientCapacity { offerings, .. }) => {
            let refused: Vec<_> = offerings.iter().map(|one| (one.reservation.as_deref(), one.code.as_str())).collect();
            assert_eq!(refused, [(Some("cr-1"), "ReservationCapacityExceeded")]);
        }
        other => panic!("{other:?}"),
    }

    let mut claim = claims[0].clone();
    claim.status = serde_json::from_value(serde_json::json!({ "providerID": launched.provider_id })).expect("a status");
    assert_eq!(aws.drift(&claim, &class).await.expect("looked"), None);
    let mut other = class.clone();
    other.spec.capacity_reservation_selector_terms.clear();
    other.status.as_mut().expect("a status").capacity_reservations.clear();
    assert_eq!(aws.drift(&claim, &other).await.expect("looked").as_deref(), Some("CapacityReservationDrift"));
    reserve(serde_json::json!([])).await;
    assert_eq!(aws.drift(&claim, &other).await.expect("looked"), None, "the reservation is gone, not deselected");
    let demoted = aws.get(&launched.provider_id).await.expect("looked").instance().expect("it runs on");
    assert_eq!((demoted.capacity_type, demoted.reservation), (CapacityType::OnDemand, None));

    let bought = self::offerings(&aws, &class, CapacityType::OnDemand).await;
    let order = LaunchOrder { offerings: &bought, attempt: 2, ..second };
    let Request::Fleet { request, .. } = aws.prepare(&order).await.expect("prepared").request else {
        panic!("a fleet")
    };
    let call = aws.clients.ec2().describe_launch_template_versions();
    let answer = call.launch_template_name(&request.choices[0].launch_template).send().await.expect("described");
    let data = answer.launch_template_versions()[0].launch_template_data().expect("data");
    let preference =
        data.capacity_reservation_specification().and_then(|asked| asked.capacity_reservation_preference());
    assert_eq!(preference.map(|one| one.as_str()), Some("none"), "open reservations are for those that ask");
    aws.terminate(&launched.provider_id).await.expect("ended");
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn a_missing_profile_refuses_the_launch_by_name() {
    let Some(aws) = provider("profile").await else { return };
    let mut class = class(&aws, "profile").await;
    class.status.as_mut().expect("a status").instance_profile = Some("no-such-profile".to_owned());
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-profile");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let prepared = aws.prepare(&order).await.expect("prepared");
    match aws.launch(&prepared, Token::free()).await {
        Err(LaunchError::Denied { reason, .. }) => assert_eq!(reason, "InstanceProfileNameInvalid"),
        other => panic!("{other:?}"),
    }
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn a_known_template_is_launched_from_while_ec2_cannot_be_asked_for_it() {
    let Some(aws) = provider("outage").await else { return };
    let class = class(&aws, "outage").await;
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-outage");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    aws.prepare(&order).await.expect("prepared");
    aws.templates.age(TRUST);
    let Request::Fleet { templates, .. } = aws.prepare(&order).await.expect("looked up again").request else {
        panic!("a fleet")
    };
    for (code, status) in [("RequestLimitExceeded", 503), ("InternalError", 500), ("Unavailable", 503)] {
        // the call's filters hold the names
        for name in templates.keys() {
            let broken = serde_json::json!([
                { "action": "DescribeLaunchTemplates", "where": name, "code": code, "status": status, "times": 100 },
            ]);
            door("POST", "fail", &broken.to_string()).await;
        }
        aws.templates.age(TRUST);
        let prepared = aws.prepare(&order).await.expect("the templates are known");
        let launched = aws.launch(&prepared, Token::free()).await.expect("launched").instance;
        assert_eq!(launched.claim.as_deref(), Some("default-outage"), "{code}");
        aws.templates.doubt(templates.keys());
        let refused = aws.prepare(&order).await;
        assert!(matches!(refused, Err(LaunchError::Cloud(CloudError::Retry { .. }))), "{code}: {refused:?}");
        for name in templates.keys() {
            let mended = serde_json::json!([{ "action": "DescribeLaunchTemplates", "where": name, "times": 0 }]);
            door("POST", "fail", &mended.to_string()).await;
        }
        aws.prepare(&order).await.expect("mended");
    }
    for instance in aws.find(&claim).await.expect("found") {
        aws.terminate(&instance.provider_id).await.expect("ended");
    }
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn a_template_that_ec2_does_not_make_is_made_later() {
    let Some(aws) = provider("unmade").await else { return };
    let class = class(&aws, "unmade").await;
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-unmade");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    let broken = serde_json::json!([
        { "action": "CreateLaunchTemplate", "where": "unmade", "code": "InternalError", "status": 500, "times": 100 },
    ]);
    door("POST", "fail", &broken.to_string()).await;
    let refused = aws.prepare(&order).await;
    assert!(
        matches!(refused, Err(LaunchError::Cloud(CloudError::Retry { .. }))),
        "there is nothing to launch from: {refused:?}"
    );
    let mended = serde_json::json!([{ "action": "CreateLaunchTemplate", "where": "unmade", "times": 0 }]);
    door("POST", "fail", &mended.to_string()).await;
    let prepared = aws.prepare(&order).await.expect("mended");
    assert!(!templates_of(&aws, &prepared).await.is_empty(), "they are there");
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn templates_that_no_launch_uses_are_deleted_and_those_in_use_stay() {
    let Some(aws) = provider("idle").await else { return };
    let class = class(&aws, "idle").await;
    let ownership = class::ownership(&aws.cluster_name, "idle");
    let names = async || {
        let listed = launch_template::list(&aws.clients, &ownership).await.expect("listed");
        listed.into_iter().map(|template| template.name).collect::<Vec<_>>()
    };
    let offerings = offerings(&aws, &class, CapacityType::OnDemand).await;
    let catalogue = aws.catalogue(&class).await.expect("a catalogue");
    let claim = claim("default-idle");
    let order = LaunchOrder { claim: &claim, class: &class, attempt: 1, offerings: &offerings, catalogue: &catalogue };
    aws.prepare(&order).await.expect("prepared");
    let old = names().await;
    assert!(!old.is_empty());
    aws.templates.age(IDLE);
    let mut changed = class.clone();
    changed.spec.user_data = Some("#!/bin/sh\ntrue\n".to_owned());
    aws.prepare(&LaunchOrder { class: &changed, ..order }).await.expect("prepared anew");
    assert_eq!(names().await.len(), old.len() * 2);
    aws.templates.collect(&aws.clients, "idle", &ownership).await;
    let kept = names().await;
    assert_eq!(kept.len(), old.len());
    assert!(kept.iter().all(|name| !old.contains(name)), "only what no launch named for long is gone");
    aws.release(&class).await.expect("released");
}

#[tokio::test]
async fn a_queue_that_is_not_there_is_named_and_found_later() {
    let Some(aws) = provider("queue").await else { return };
    let error = aws.receive().await.expect_err("there is none");
    assert!(error.to_string().contains("GetQueueUrl"), "{error}");
    let made = aws.clients.sqs().create_queue().queue_name(&aws.queue_name).send().await.expect("made");
    let url = made.queue_url.expect("a URL");
    aws.clients.sqs().send_message().queue_url(&url).message_body("{}").send().await.expect("sent");
    let messages = aws.receive().await.expect("received").expect("a queue");
    assert_eq!(messages.iter().map(|message| message.body.as_str()).collect::<Vec<_>>(), ["{}"]);
    let receipts: Vec<String> = messages.into_iter().map(|message| message.receipt).collect();
    aws.delete_messages(&receipts).await.expect("deleted");
}
