//! The emulated AWS as the tests use it: what a cluster needs beforehand, the queue, and the door for faults.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use karp_aws::config::{AccessKeys, Clients, Service, Settings};
use karp_domain::iam::{ControllerScope, controller_policy};
use serde_json::{Value, json};

/// How long one answer may take; replies that are held are the controller's, never the test's.
const ANSWER: Duration = Duration::from_secs(30);

/// The emulator, and what one test made there.
pub struct Aws {
    pub endpoint: String,
    pub region: String,
    pub cluster: String,
    /// The instance profile that nodes run under.
    pub profile: String,
    /// The interruption queue, by name and by URL.
    pub queue: String,
    pub queue_url: String,
    pub seed: Value,
    clients: Clients,
    /// The capacity reservations of each test.
    reservations: Mutex<BTreeMap<String, Vec<Value>>>,
}

/// A thing that EC2 makes for a node.
pub enum Thing<'a> {
    Instance { image: &'a str },
    NetworkInterface,
    Volume,
    LaunchTemplate { name: &'a str, image: &'a str },
}

impl Aws {
    /// Makes profile, access entry, queue and the rule that feeds it, all under this name.
    pub async fn prepare(endpoint: String, cluster: String, name: &str) -> Self {
        let region = std::env::var("KARP_TEST_REGION").unwrap_or_else(|_| "us-east-1".to_owned());
        let keys = AccessKeys { access_key_id: "test".into(), secret_access_key: "test".into(), session_token: None };
        let settings = Settings {
            region: Some(region.clone()),
            access_keys: Some(keys),
            endpoints: Service::ALL.into_iter().map(|service| (service, endpoint.clone())).collect(),
            ..Settings::default()
        };
        let clients = Clients::load(&settings).await.expect("settings are complete");
        let queue_url = clients.sqs().create_queue().queue_name(name).send().await.expect("a queue");
        let aws = Self {
            seed: http(&endpoint, "GET", "/_karp/seed", &[], ""),
            queue_url: queue_url.queue_url().expect("its URL").to_owned(),
            queue: name.to_owned(),
            profile: name.to_owned(),
            endpoint,
            region,
            cluster,
            clients,
            reservations: Mutex::default(),
        };
        aws.door("reset-faults", &json!({}));
        aws.may_join(name).await;
        aws.feed();
        aws
    }

    /// Makes a profile whose instances may not join the cluster, and returns its name.
    pub async fn stranger(&self) -> String {
        let name = format!("{}-stranger", self.profile);
        self.role(&name).await;
        name
    }

    /// Makes a role with the policy that the provider writes, and begins a session of it: what a controller runs under. The emulator's log
    /// of rights knows controllers by the role's name.
    pub async fn controller(&self) -> [(&'static str, String); 3] {
        let account = self.seed["account_id"].as_str().expect("an account");
        let arn = |name: &str| format!("arn:aws:iam::{account}:role/{name}");
        let name = format!("KarpControllerRole-{}", self.queue);
        let policy = controller_policy(&ControllerScope {
            partition: "aws".to_owned(),
            region: self.region.clone(),
            account_id: account.to_owned(),
            cluster_name: self.cluster.clone(),
            node_role_arns: vec![arn(&self.profile), arn(&format!("{}-stranger", self.profile))],
            interruption_queue_arn: Some(format!("arn:aws:sqs:{}:{account}:{}", self.region, self.queue)),
            ..ControllerScope::default()
        });
        let iam = self.clients.iam();
        iam.create_role().role_name(&name).assume_role_policy_document("{}").send().await.expect("a role");
        let call = iam.put_role_policy().role_name(&name).policy_name("karp-controller");
        call.policy_document(policy.to_string()).send().await.expect("a policy");
        let call = format!("Action=AssumeRole&RoleSessionName=karp&RoleArn={}", arn(&name));
        let answer = self.query("sts", &format!("{call}&Version=2011-06-15"));
        let field = |field: &str| {
            let value = answer.split_once(&format!("<{field}>")).and_then(|(_, rest)| rest.split('<').next());
            value.unwrap_or_else(|| panic!("{field} in {answer}")).to_owned()
        };
        [
            ("AWS_ACCESS_KEY_ID", field("AccessKeyId")),
            ("AWS_SECRET_ACCESS_KEY", field("SecretAccessKey")),
            ("AWS_SESSION_TOKEN", field("SessionToken")),
        ]
    }

    /// Ends an instance as somebody with the account's console does.
    pub fn end_instance(&self, id: &str) {
        self.ec2(&format!("Action=TerminateInstances&InstanceId.1={id}"));
    }

    /// Makes a thing in EC2 with these tags, as controllers and the network plugin do; returns its id.
    pub fn plant(&self, thing: &Thing<'_>, tags: &[(&str, &str)]) -> String {
        let subnet = self.seed["subnet_ids"][0].as_str().expect("a subnet");
        let (kind, id, call) = match thing {
            Thing::Instance { image } => {
                let how = "InstanceType=m5.large&MinCount=1&MaxCount=1";
                ("instance", "instanceId", format!("RunInstances&ImageId={image}&SubnetId={subnet}&{how}"))
            }
            Thing::NetworkInterface => {
                ("network-interface", "networkInterfaceId", format!("CreateNetworkInterface&SubnetId={subnet}"))
            }
            Thing::Volume => ("volume", "volumeId", format!("CreateVolume&AvailabilityZone={}a&Size=1", self.region)),
            Thing::LaunchTemplate { name, image } => {
                let data = format!("LaunchTemplateName={name}&LaunchTemplateData.ImageId={image}");
                ("launch-template", "launchTemplateId", format!("CreateLaunchTemplate&{data}"))
            }
        };
        let mut call = format!("Action={call}&TagSpecification.1.ResourceType={kind}");
        for (at, (key, value)) in tags.iter().enumerate() {
            let tag = format!("TagSpecification.1.Tag.{}", at + 1);
            call += &format!("&{tag}.Key={key}&{tag}.Value={value}");
        }
        let answer = self.ec2(&call);
        let (_, rest) = answer.split_once(&format!("<{id}>")).unwrap_or_else(|| panic!("{call}: {answer}"));
        rest.split('<').next().expect("an id").to_owned()
    }

    /// Makes an instance profile on the path of a node class's own; returns its name.
    pub async fn plant_profile(&self, cluster: &str, name: &str, class_uid: &str) -> String {
        let path = format!("/karpenter/{}/{cluster}/{class_uid}/", self.region);
        let call = self.clients.iam().create_instance_profile().instance_profile_name(name).path(path);
        call.send().await.expect("a profile");
        name.to_owned()
    }

    /// Ends what was planted, by its id.
    pub async fn uproot(&self, id: &str) {
        match id.split('-').next() {
            Some("i") => self.end_instance(id),
            Some("eni") => drop(self.ec2(&format!("Action=DeleteNetworkInterface&NetworkInterfaceId={id}"))),
            Some("vol") => drop(self.ec2(&format!("Action=DeleteVolume&VolumeId={id}"))),
            Some("subnet") => drop(self.ec2(&format!("Action=DeleteSubnet&SubnetId={id}"))),
            Some("lt") => drop(self.ec2(&format!("Action=DeleteLaunchTemplate&LaunchTemplateId={id}"))),
            _ => {
                let call = self.clients.iam().delete_instance_profile().instance_profile_name(id);
                call.send().await.expect("it is deleted");
            }
        }
    }

    /// Makes a subnet in a zone of the cluster's VPC, by the letter of the zone; returns its id.
    pub fn plant_subnet(&self, letter: char, cidr: &str) -> String {
        let vpc = self.seed["vpc_id"].as_str().expect("a VPC");
        let zone = format!("{}{letter}", self.region);
        let answer = self.ec2(&format!("Action=CreateSubnet&VpcId={vpc}&CidrBlock={cidr}&AvailabilityZone={zone}"));
        let id = answer.split_once("<subnetId>").and_then(|(_, rest)| rest.split('<').next());
        id.unwrap_or_else(|| panic!("a subnet in {answer}")).to_owned()
    }

    /// Deletes the launch templates of a node class as somebody with the account's console does; returns how many there were.
    pub async fn delete_templates(&self, class: &str) -> usize {
        let tags = BTreeMap::from([("karpenter.k8s.aws/ec2nodeclass".to_owned(), class.to_owned())]);
        karp_aws::launch_template::delete_all(&self.clients, &tags).await.expect("they are deleted")
    }

    /// Returns the user data in all launch templates of a node class.
    pub async fn user_data(&self, class: &str) -> Vec<String> {
        let tags = BTreeMap::from([("karpenter.k8s.aws/ec2nodeclass".to_owned(), class.to_owned())]);
        let templates = karp_aws::launch_template::list(&self.clients, &tags).await.expect("templates");
        let mut texts = Vec::new();
        for template in templates {
            let call = self.clients.ec2().describe_launch_template_versions().launch_template_id(template.id);
            let versions = call.send().await.expect("versions").launch_template_versions.unwrap_or_default();
            let all = versions.into_iter().filter_map(|version| version.launch_template_data?.user_data);
            texts.extend(all.map(|text| String::from_utf8(STANDARD.decode(text).expect("base64")).expect("text")));
        }
        texts
    }

    /// Calls EC2 by its query API, as anybody with the account's credentials may.
    pub fn ec2(&self, call: &str) -> String {
        self.query("ec2", &format!("{call}&Version=2016-11-15"))
    }

    fn query(&self, service: &str, call: &str) -> String {
        let scope = format!("AWS4-HMAC-SHA256 Credential=test/20260101/{}/{service}/aws4_request", self.region);
        let headers = [
            ("Content-Type", "application/x-www-form-urlencoded".to_owned()),
            ("Authorization", format!("{scope}, SignedHeaders=host, Signature=0")),
        ];
        exchange(&self.endpoint, "POST", "/", &headers, call)
    }

    /// Lets instances of the profile join the cluster.
    async fn may_join(&self, name: &str) {
        let arn = self.role(name).await;
        let entry = self.clients.eks().create_access_entry().cluster_name(&self.cluster).principal_arn(arn);
        entry.r#type("EC2_LINUX").send().await.expect("an access entry");
    }

    /// Makes a role and an instance profile with it; returns the role's ARN.
    async fn role(&self, name: &str) -> String {
        let iam = aws_sdk_iam::Client::new(&self.clients.config_for(Service::Iam));
        let trust = json!({
            "Version": "2012-10-17",
            "Statement": [{ "Effect": "Allow", "Principal": { "Service": "ec2.amazonaws.com" }, "Action": "sts:AssumeRole" }],
        });
        let role = iam.create_role().role_name(name).assume_role_policy_document(trust.to_string());
        let arn = role.send().await.expect("a role").role.expect("the role").arn;
        iam.create_instance_profile().instance_profile_name(name).send().await.expect("a profile");
        let joined = iam.add_role_to_instance_profile().role_name(name).instance_profile_name(name).send();
        joined.await.expect("the role is put into the profile");
        arn
    }

    /// Sends EC2's warnings to the queue.
    fn feed(&self) {
        let events = |action: &str, body: Value| {
            let scope = format!("AWS4-HMAC-SHA256 Credential=test/20260101/{}/events/aws4_request", self.region);
            let headers = [
                ("Content-Type", "application/x-amz-json-1.1".to_owned()),
                ("X-Amz-Target", format!("AWSEvents.{action}")),
                ("Authorization", format!("{scope}, SignedHeaders=host, Signature=0")),
            ];
            http(&self.endpoint, "POST", "/", &headers, &body.to_string())
        };
        let pattern = json!({ "source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"] });
        events("PutRule", json!({ "Name": self.queue, "EventPattern": pattern.to_string() }));
        let account = self.seed["account_id"].as_str().expect("an account");
        let arn = format!("arn:aws:sqs:{}:{account}:{}", self.region, self.queue);
        events("PutTargets", json!({ "Rule": self.queue, "Targets": [{ "Id": "queue", "Arn": arn }] }));
    }

    /// Calls the tests' door of the emulator.
    pub fn door(&self, name: &str, body: &Value) -> Value {
        http(&self.endpoint, "POST", &format!("/_karp/{name}"), &[], &body.to_string())
    }

    /// Reads at the tests' door of the emulator.
    pub fn look(&self, name: &str) -> Value {
        http(&self.endpoint, "GET", &format!("/_karp/{name}"), &[], "")
    }

    /// Takes all faults back that tests asked for, as far as the emulator answers: the test may be about to end for that.
    pub fn forgive(&self) {
        // a second panic on the thread of a test that panics would end all tests
        std::thread::scope(|scope| drop(scope.spawn(|| self.door("reset-faults", &json!({}))).join()));
    }

    /// Sets the capacity reservations of a test; those of others stay.
    pub fn reserve(&self, test: &str, wanted: Vec<Value>) {
        let mut all = self.reservations.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(test.to_owned(), wanted);
        self.door("reservations", &all.values().flatten().cloned().collect());
    }

    /// Returns every instance, ended ones too, that was ever launched for a pool.
    pub fn instances(&self, pool: &str) -> Vec<Value> {
        let all: Vec<Value> = serde_json::from_value(self.look("instances")).expect("instances");
        all.into_iter().filter(|instance| instance["tags"]["karpenter.sh/nodepool"] == pool).collect()
    }

    /// Returns all calls of an action that the emulator has in its log, whoever made them.
    pub fn calls(&self, action: &str) -> Vec<Value> {
        serde_json::from_value(self.look(&format!("calls?action={action}"))).expect("calls")
    }

    /// Returns how many replies of an action are held back now.
    pub fn held(&self, action: &str) -> u64 {
        self.look("held")[action].as_u64().unwrap_or(0)
    }

    /// Puts a message into the queue.
    pub async fn send(&self, body: &str) {
        let call = self.clients.sqs().send_message().queue_url(&self.queue_url).message_body(body);
        call.send().await.expect("a message is taken");
    }

    /// Returns how many messages the queue has, those in somebody's hands included.
    pub async fn queued(&self) -> u32 {
        let call = self.clients.sqs().get_queue_attributes().queue_url(&self.queue_url);
        let answer = call.attribute_names("All".into()).send().await.expect("attributes");
        let attributes = answer.attributes.unwrap_or_default();
        let counts = attributes.iter().filter(|(name, _)| {
            matches!(name.as_str(), "ApproximateNumberOfMessages" | "ApproximateNumberOfMessagesNotVisible")
        });
        counts.map(|(_, count)| count.parse::<u32>().expect("a number")).sum()
    }
}

/// Says whether an instance of the emulator's list has ended, or is about to.
pub fn is_ending(instance: &Value) -> bool {
    instance["state"] == "terminated" || instance["state"] == "shutting-down"
}

/// One HTTP exchange; panics unless it is answered with 200.
fn http(endpoint: &str, method: &str, path: &str, headers: &[(&str, String)], body: &str) -> Value {
    let text = exchange(endpoint, method, path, headers, body);
    if text.is_empty() { Value::Null } else { serde_json::from_str(&text).expect("JSON") }
}

/// One HTTP exchange with the body of its answer.
pub fn exchange(endpoint: &str, method: &str, path: &str, headers: &[(&str, String)], body: &str) -> String {
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(ANSWER)).expect("a time limit");
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let request =
        format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("HTTP/1.") && head.contains(" 200 "), "{method} {path}: {answer}");
    body.to_owned()
}
