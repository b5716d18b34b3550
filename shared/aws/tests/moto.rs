//! karp-aws against the sandbox's AWS: outcomes as the API then shows them.
//!
//! `cargo verify` starts the emulator and sets `KARP_TEST_AWS_ENDPOINT`; without it every test says that it is skipped.

use karp_aws::config::{AccessKeys, Clients, Service, Settings};
use karp_aws::error::{Error, Retry};
use karp_aws::fleet::{self, Choice, Override, Request};
use karp_aws::images::{self, Alias, Variant};
use karp_aws::launch_template::{self, BlockDevice, Interface, MetadataOptions, Spec};
use karp_aws::pace::Token;
use karp_aws::parameters::Parameters;
use karp_aws::queue::Queue;
use karp_aws::selector::Term;
use karp_aws::{eks, instance_types, instances, prices, security_groups, subnets, token};
use karp_domain::catalogue::{self, Arch, CapacityType};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};

const ENDPOINT: &str = "KARP_TEST_AWS_ENDPOINT";
const REGION: &str = "KARP_TEST_REGION";

/// The emulator's region.
fn region() -> String {
    std::env::var(REGION).unwrap_or_else(|_| "us-east-1".to_owned())
}

/// The emulator, as one test sees it.
struct Aws {
    clients: Clients,
    endpoint: String,
    /// Tells this test's resources from those of the tests beside it.
    cluster: String,
    seed: serde_json::Value,
}

impl Aws {
    async fn open(test: &str) -> Option<Self> {
        let Ok(endpoint) = std::env::var(ENDPOINT) else {
            println!("{test} skipped: sandbox not built ({ENDPOINT} is not set; `cargo verify` sets it)");
            return None;
        };
        let keys = AccessKeys { access_key_id: "test".into(), secret_access_key: "test".into(), session_token: None };
        let settings = Settings {
            region: Some(region()),
            access_keys: Some(keys),
            endpoints: Service::ALL.into_iter().map(|service| (service, endpoint.clone())).collect(),
            ..Settings::default()
        };
        let clients = Clients::load(&settings).await.expect("settings are complete");
        let seed = http(&endpoint, "GET", "/_karp/seed", "");
        let cluster = format!("{test}-{}", std::process::id());
        Some(Self { clients, endpoint, cluster, seed })
    }

    fn subnet_ids(&self) -> Vec<String> {
        serde_json::from_value(self.seed["subnet_ids"].clone()).expect("the seed has subnets")
    }

    fn tags(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (format!("kubernetes.io/cluster/{}", self.cluster), "owned".to_owned()),
            ("karpenter.sh/nodepool".to_owned(), "default".to_owned()),
        ])
    }

    async fn spec(&self) -> Spec {
        let alias = Alias::parse("al2023@latest").expect("an alias");
        let images = images::by_alias(&self.clients, &Parameters::default(), &alias, "1.33").await.expect("images");
        let standard = images
            .iter()
            .find(|image| (image.variant, image.arch) == (Variant::Standard, Arch::Amd64))
            .expect("a standard image");
        Spec {
            image_id: standard.id.clone(),
            instance_profile: self.profile().await,
            user_data: "hello".into(),
            security_group_ids: vec![self.seed["security_group_ids"][0].as_str().expect("a group").to_owned()],
            block_devices: vec![BlockDevice::gp3("/dev/xvda", 20)],
            metadata: MetadataOptions::default(),
            detailed_monitoring: false,
            associate_public_ip: None,
            placement: None,
            dedicated: false,
            interface: Interface::default(),
            nested_vms: None,
            enclaves: false,
            reservations: Default::default(),
            spot: true,
            tags: self.tags(),
        }
    }

    /// Makes an instance profile, as the provider does.
    async fn profile(&self) -> String {
        let iam = aws_sdk_iam::Client::new(&self.clients.config_for(Service::Iam));
        let name = self.cluster.clone();
        let trust = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}"#;
        let role = iam.create_role().role_name(&name).assume_role_policy_document(trust).send().await;
        let profile = iam.create_instance_profile().instance_profile_name(&name).send().await;
        if role.is_ok() && profile.is_ok() {
            let call = iam.add_role_to_instance_profile().role_name(&name).instance_profile_name(&name);
            call.send().await.expect("the role is put into the profile");
        }
        name
    }

    /// A request for one instance of any of `types` in any seeded subnet.
    async fn request(&self, capacity_type: CapacityType, types: &[&str]) -> Request {
        static TOKENS: AtomicU32 = AtomicU32::new(0);
        let spec = Spec { spot: capacity_type == CapacityType::Spot, ..self.spec().await };
        let template = launch_template::make(&self.clients, &spec).await.expect("a template");
        let terms: Vec<Term> = self.subnet_ids().into_iter().map(Term::id).collect();
        let subnets = subnets::find(&self.clients, &terms).await.expect("subnets");
        let overrides = types.iter().flat_map(|kind| {
            subnets.iter().map(move |subnet| Override {
                instance_type: (*kind).to_owned(),
                subnet_id: subnet.id.clone(),
                zone: subnet.zone.clone(),
                priority: None,
            })
        });
        let mut tags = self.tags();
        tags.insert("karpenter.sh/nodeclaim".into(), "default-abc".into());
        Request {
            client_token: format!("{}-{}", self.cluster, TOKENS.fetch_add(1, Ordering::Relaxed)),
            capacity_type,
            count: 1,
            reservation: None,
            choices: vec![Choice { launch_template: template.name, overrides: overrides.collect() }],
            tags,
            context: None,
        }
    }
}

/// One request of HTTP/1.0, enough for the emulator's own door.
fn http(endpoint: &str, method: &str, path: &str, body: &str) -> serde_json::Value {
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("the emulator listens");
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("HTTP/1.") && head.contains(" 200 "), "{method} {path}: {answer}");
    serde_json::from_str(body).expect("JSON")
}

#[tokio::test]
async fn the_caller_and_the_cluster_are_known() {
    let Some(aws) = Aws::open("identity").await else { return };
    let caller = aws.clients.caller_identity().await.expect("an identity");
    assert_eq!((caller.account_id.as_str(), caller.partition.as_str()), ("123456789012", "aws"));
    let name = aws.seed["cluster_name"].as_str().expect("a cluster");
    let cluster = eks::describe(&aws.clients, name).await.expect("the seeded cluster");
    assert_eq!((cluster.name.as_str(), cluster.status.as_str()), (name, "ACTIVE"));
    assert!(cluster.oidc_issuer.is_some() && cluster.service_cidr.is_some() && cluster.vpc_id.is_some(), "{cluster:?}");
    let error = eks::describe(&aws.clients, "no-such-cluster").await.expect_err("there is none");
    assert!(error.is_not_found() && error.to_string().contains("no-such-cluster"), "{error}");
    let token = token::bearer(&aws.clients, name).await.expect("a token");
    let review = format!(r#"{{"spec":{{"token":"{}"}}}}"#, token.value);
    let answer = http(&aws.endpoint, "POST", "/_karp/token-review", &review);
    assert_eq!(answer["status"]["authenticated"], true, "the authenticator knows the caller: {answer}");
}

#[tokio::test]
async fn subnets_and_groups_are_found_by_id_tag_and_name() {
    let Some(aws) = Aws::open("discovery").await else { return };
    let ids = aws.subnet_ids();
    let key = format!("discovery/{}", aws.cluster);
    let tag = BTreeMap::from([(key.clone(), "yes".to_owned())]);
    instances::tag(&aws.clients, &ids[..2], &tag).await.expect("tags");
    for (value, expected) in [("yes", 2), ("*", 2), ("no", 0)] {
        let found = subnets::find(&aws.clients, &[Term::tag(&key, value)]).await.expect("subnets");
        assert_eq!(found.len(), expected, "{key}={value}");
    }
    let both = [Term::tag(&key, "yes"), Term::id(&ids[1]), Term::id(&ids[2])];
    let found = subnets::find(&aws.clients, &both).await.expect("subnets");
    assert_eq!(found.len(), 3, "terms are alternatives, and nothing comes twice");
    assert!(found.iter().all(|subnet| subnet.zone.starts_with(&region()) && subnet.free_addresses > 0), "{found:?}");
    let unknown = subnets::find(&aws.clients, &[Term::id("subnet-00000000000000000")]).await;
    assert!(unknown.as_ref().map_or_else(Error::is_not_found, Vec::is_empty), "{unknown:?}");

    let name = format!("{}-node", aws.seed["cluster_name"].as_str().expect("a cluster"));
    let by_name = Term { name: Some(name.clone()), ..Term::default() };
    let groups = security_groups::find(&aws.clients, &[by_name]).await.expect("groups");
    assert_eq!(groups.iter().map(|group| &group.name).collect::<Vec<_>>(), [&name]);
}

#[tokio::test]
async fn images_are_found_by_alias_id_and_name() {
    let Some(aws) = Aws::open("images").await else { return };
    for (text, kubernetes, count) in [
        ("al2023@latest", "1.33", 5),
        ("bottlerocket@latest", "1.33", 5),
        ("al2@latest", "1.32", 4),
        ("windows2022@latest", "1.33", 1),
    ] {
        let alias = Alias::parse(text).expect("an alias");
        let found = images::by_alias(&aws.clients, &Parameters::default(), &alias, kubernetes).await.expect(text);
        assert_eq!(found.len(), count, "{text}: {found:?}");
        assert!(found.iter().all(|image| !image.name.is_empty() && image.created_at.is_some()), "{found:?}");
        let terms = [
            images::Term { id: Some(found[0].id.clone()), ..images::Term::default() },
            images::Term { id: Some("ami-00000000000000000".into()), ..images::Term::default() },
        ];
        let by_id = images::find(&aws.clients, &Parameters::default(), &terms).await.expect("images");
        assert_eq!(by_id.iter().map(|image| &image.id).collect::<Vec<_>>(), [&found[0].id]);
    }
    let alias = Alias::parse("al2023@v19990101").expect("an alias");
    let error =
        images::by_alias(&aws.clients, &Parameters::default(), &alias, "1.33").await.expect_err("never published");
    assert!(error.is_not_found(), "{error}");
}

#[tokio::test]
async fn the_live_catalogue_agrees_with_the_built_in_table() {
    let Some(aws) = Aws::open("catalogue").await else { return };
    let offered = instance_types::offered_zones(&aws.clients).await.expect("offerings");
    assert!(offered["m5.large"].len() >= 3, "{:?}", offered["m5.large"]);
    let mut names: Vec<String> = offered.into_keys().collect();
    names.push("x0.imaginary".to_owned());
    let live = instance_types::describe(&aws.clients, &names).await.expect("facts");
    assert!(live.len() > 900, "{}", live.len());
    for facts in &live {
        assert_eq!(Some(facts), catalogue::builtin_type(&facts.name), "{}", facts.name);
    }
}

#[tokio::test]
async fn prices_are_read_from_the_price_list_and_the_spot_history() {
    let Some(aws) = Aws::open("prices").await else { return };
    let on_demand = prices::on_demand(&aws.clients).await.expect("on-demand prices");
    let spot = prices::spot(&aws.clients).await.expect("spot prices");
    let prices = prices::Prices { on_demand, spot, ..prices::Prices::default() };
    assert!(prices.on_demand.len() > 500, "{}", prices.on_demand.len());
    let of = |capacity_type| prices.of("m5.large", &format!("{}a", region()), capacity_type).expect("a price");
    let (bought, spared) = (of(CapacityType::OnDemand), of(CapacityType::Spot));
    assert!(spared < bought && spared.micro_dollars() > 1_000, "spot {spared}, on demand {bought}");
}

#[tokio::test]
async fn a_launch_can_be_repeated_found_tagged_and_ended() {
    let Some(aws) = Aws::open("launch").await else { return };
    let clients = &aws.clients;
    let template = launch_template::make(clients, &aws.spec().await).await.expect("a template");
    assert_eq!(template, launch_template::make(clients, &aws.spec().await).await.expect("the same template"));
    let found = launch_template::look(clients, &aws.spec().await).await.expect("an answer");
    assert_eq!(found.as_ref(), Some(&template), "it is found");

    let request = aws.request(CapacityType::Spot, &["m5.24xlarge", "m5.large"]).await;
    let answer = fleet::create(clients, &request, Token::free()).await.expect("a fleet");
    assert_eq!(answer.launched.len(), 1, "{answer:?}");
    let launched = &answer.launched[0];
    assert_eq!((launched.instance_type.as_str(), launched.capacity_type), ("m5.large", CapacityType::Spot));
    let again = fleet::create(clients, &request, Token::free()).await.expect("the stored answer");
    assert_eq!(again.launched, answer.launched, "one token, one instance");
    let changed = Request { count: 2, ..request.clone() };
    let error =
        fleet::create(clients, &changed, Token::free()).await.expect_err("another request under the token").error;
    assert!(matches!(error, Error::TokenReused { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Resolve);

    let claimed = BTreeMap::from([("karpenter.sh/nodeclaim".to_owned(), "default-abc".to_owned())]);
    let tags: BTreeMap<String, String> = aws.tags().into_iter().chain(claimed).collect();
    let listed = instances::list(clients, &tags).await.expect("a list");
    assert_eq!(listed.iter().map(|found| &found.id).collect::<Vec<_>>(), [&launched.instance_id]);
    assert_eq!(listed[0].security_group_ids, aws.spec().await.security_group_ids, "the template's groups");
    assert_eq!((listed[0].zone.as_str(), listed[0].capacity_type), (launched.zone.as_str(), CapacityType::Spot));
    let name = BTreeMap::from([("Name".to_owned(), "node-1".to_owned())]);
    instances::tag(clients, std::slice::from_ref(&launched.instance_id), &name).await.expect("tagged");

    let unknown = "i-0123456789abcdef0".to_owned();
    let ends = instances::terminate(clients, &[unknown.clone(), launched.instance_id.clone()]).await;
    for (id, end) in &ends {
        match end {
            Ok(()) => assert_eq!(*id, launched.instance_id),
            Err(error) => assert!(*id == unknown && error.is_not_found(), "{id}: {error}"),
        }
    }
    assert_eq!(ends.len(), 2, "an answer for each");
    let described = instances::describe(clients, &[launched.instance_id.clone(), unknown]).await.expect("described");
    assert_eq!(described.len(), 1);
    assert!(described[0].state.is_ending() && described[0].tags["Name"] == "node-1", "{described:?}");

    let owned = BTreeMap::from([(format!("kubernetes.io/cluster/{}", aws.cluster), "*".to_owned())]);
    assert_eq!(launch_template::delete_all(clients, &owned).await.expect("deleted"), 1);
    assert!(launch_template::list(clients, &owned).await.expect("listed").is_empty());
    launch_template::delete(clients, &template.id).await.expect("deleting twice is fine");
}

#[tokio::test]
async fn missing_capacity_is_told_offering_by_offering() {
    let Some(aws) = Aws::open("capacity").await else { return };
    // Types that no other test here asks for: the emulator's faults are everybody's.
    let rule =
        r#"[{"capacity_type":"*","instance_type":"c5.xlarge","zone":"*","code":"InsufficientInstanceCapacity"}]"#;
    http(&aws.endpoint, "POST", "/_karp/capacity", rule);
    let request = aws.request(CapacityType::OnDemand, &["c5.xlarge", "c5.2xlarge"]).await;
    let answer = fleet::create(&aws.clients, &request, Token::free()).await.expect("a fleet");
    assert_eq!(answer.launched.iter().map(|one| one.instance_type.as_str()).collect::<Vec<_>>(), ["c5.2xlarge"]);
    let request = aws.request(CapacityType::OnDemand, &["c5.xlarge"]).await;
    let answer = fleet::create(&aws.clients, &request, Token::free()).await.expect("an answer without instances");
    assert!(answer.launched.is_empty());
    assert_eq!(answer.refused.len(), 3, "one for each zone: {answer:?}");
    assert!(answer.refused.iter().all(|one| one.instance_type == "c5.xlarge" && one.zone.starts_with(&region())));
    assert!(answer.refused.iter().all(|one| matches!(one.error(), Error::InsufficientCapacity { .. })));
    http(&aws.endpoint, "POST", "/_karp/capacity", "[]");
}

#[tokio::test]
async fn prices_of_the_operators_own_decide_by_priority() {
    let Some(aws) = Aws::open("priority").await else { return };
    for capacity_type in [CapacityType::OnDemand, CapacityType::Spot] {
        let launched = async |first: &str| {
            let mut request = aws.request(capacity_type, &["m5.large", "m5.4xlarge"]).await;
            for one in request.choices.iter_mut().flat_map(|choice| &mut choice.overrides) {
                one.priority = Some(u32::from(one.instance_type != first));
            }
            let answer = fleet::create(&aws.clients, &request, Token::free()).await.expect("a fleet");
            answer.launched[0].instance_type.clone()
        };
        for first in ["m5.4xlarge", "m5.large"] {
            assert_eq!(launched(first).await, first, "{capacity_type}");
        }
    }
}

#[tokio::test]
async fn messages_are_received_and_deleted() {
    let Some(aws) = Aws::open("queue").await else { return };
    let error = Queue::open(&aws.clients, &aws.cluster).await.expect_err("not made yet");
    assert!(error.is_not_found(), "{error}");
    let made = aws.clients.sqs().create_queue().queue_name(&aws.cluster).send().await.expect("made");
    let url = made.queue_url.expect("a URL");
    let queue = Queue::open(&aws.clients, &aws.cluster).await.expect("found");
    assert_eq!(queue.url(), url);
    for body in ["one", "two"] {
        aws.clients.sqs().send_message().queue_url(&url).message_body(body).send().await.expect("sent");
    }
    let mut bodies = Vec::new();
    while bodies.len() < 2 {
        let messages = queue.receive().await.expect("received");
        let receipts: Vec<String> = messages.iter().map(|message| message.receipt.clone()).collect();
        assert_eq!(queue.delete(&receipts).await.expect("deleted"), 0);
        bodies.extend(messages.into_iter().map(|message| message.body));
    }
    bodies.sort();
    assert_eq!(bodies, ["one", "two"]);
    assert_eq!(queue.attributes().await.expect("attributes")["ApproximateNumberOfMessages"], "0");
}

#[tokio::test]
async fn throttled_calls_are_tried_again() {
    let Some(aws) = Aws::open("throttle").await else { return };
    http(&aws.endpoint, "POST", "/_karp/throttle", r#"{"DescribeSecurityGroups":2}"#);
    let term = Term::id(aws.seed["security_group_ids"][0].as_str().expect("a group"));
    let groups = security_groups::find(&aws.clients, &[term]).await.expect("after two refusals");
    assert_eq!(groups.len(), 1);
}

/// On EKS the controller has nothing but a role's ARN, a token file and an endpoint in its environment. The environment belongs to the
/// process, so this test runs the next one in a process of its own.
#[test]
fn a_web_identity_in_the_environment_is_used() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else {
        println!("skipped: sandbox not built ({ENDPOINT} is not set; `cargo verify` sets it)");
        return;
    };
    let token = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(token.path(), "no.token").expect("written");
    let child = std::process::Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "only_a_web_identity", "--ignored", "--nocapture"])
        .env_clear()
        .env("AWS_REGION", region())
        .env("AWS_ENDPOINT_URL", endpoint)
        .env("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/controller")
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", token.path())
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .output()
        .expect("started");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
}

#[tokio::test]
#[ignore = "run by a_web_identity_in_the_environment_is_used, which sets its environment"]
async fn only_a_web_identity() {
    let clients = Clients::load(&Settings::default()).await.expect("the region is in the environment");
    let error = clients.caller_identity().await.expect_err("the token is not one");
    assert!(matches!(error, Error::Credentials { .. }), "{error:?}");
    assert!(error.to_string().contains("InvalidIdentityToken"), "the emulator's STS was asked and refused: {error}");
}

#[tokio::test]
async fn an_endpoint_where_nobody_listens_is_unreachable() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|held| held.local_addr()).expect("a port").port();
    let keys = AccessKeys { access_key_id: "test".into(), secret_access_key: "test".into(), session_token: None };
    let settings = Settings {
        region: Some(region()),
        access_keys: Some(keys),
        endpoints: BTreeMap::from([(Service::Sts, format!("http://127.0.0.1:{port}"))]),
        max_attempts: Some(1),
        ..Settings::default()
    };
    let clients = Clients::load(&settings).await.expect("loading contacts nobody");
    let error = clients.caller_identity().await.expect_err("nobody listens");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(error.outcome_unknown() && error.to_string().contains("refused"), "{error}");
}
