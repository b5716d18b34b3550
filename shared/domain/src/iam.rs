//! IAM policy documents: of the controller, of the roles that nodes and Fargate take, and of the interruption queue.
//!
//! The controller's statements follow Karpenter's: what it makes it tags with the cluster's name, and it may touch only what carries that tag.

use serde_json::{Value, json};

use crate::api::labels;

mod bound;

pub use bound::bounds;

const VERSION: &str = "2012-10-17";

/// The most characters that a managed policy may have; IAM does not count white space.
pub const MANAGED_POLICY_LIMIT: usize = 6144;
/// The most characters of all inline policies of a role together.
pub const INLINE_POLICY_LIMIT: usize = 10_240;

/// Says who makes the instance profiles that nodes run under.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InstanceProfiles {
    /// The controller, for node classes that name a role.
    #[default]
    Controller,
    /// Terraform, or somebody else: each node class names a profile that is there. The controller then calls IAM for nothing.
    Terraform,
}

impl InstanceProfiles {
    /// The words, in the order of the variants.
    pub const WORDS: [&'static str; 2] = ["controller", "terraform"];

    /// Answers its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Controller => Self::WORDS[0],
            Self::Terraform => Self::WORDS[1],
        }
    }

    /// Reads its word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Controller, Self::Terraform].into_iter().find(|one| one.as_str() == word)
    }

    /// Tells who makes them by a policy of the controller: whether that lets it.
    #[must_use]
    pub fn of_policy(policy: &Value) -> Self {
        let statements = policy["Statement"].as_array().into_iter().flatten();
        let makes = statements.into_iter().any(|statement| statement["Sid"] == CREATE_PROFILES);
        if makes { Self::Controller } else { Self::Terraform }
    }
}

const CREATE_PROFILES: &str = "AllowScopedInstanceProfileCreationActions";

/// What the controller's policy is made for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControllerScope {
    /// `aws`, `aws-cn`, `aws-us-gov`.
    pub partition: String,
    pub region: String,
    pub account_id: String,
    pub cluster_name: String,
    /// Roles that may be handed to instances.
    pub node_role_arns: Vec<String>,
    /// Who makes instance profiles.
    pub instance_profiles: InstanceProfiles,
    /// The queue of interruption messages, if there is one.
    pub interruption_queue_arn: Option<String>,
    /// SSM parameters of the user's own that name images.
    pub ami_ssm_parameter_arns: Vec<String>,
    /// Statements of the user's own.
    pub extra_statements: Vec<Value>,
}

/// Returns the policy of the controller's role.
#[must_use]
pub fn controller_policy(scope: &ControllerScope) -> Value {
    let mut statements = launch_statements(scope);
    statements.extend(tagging_statements(scope));
    statements.extend(read_statements(scope));
    if let Some(queue) = &scope.interruption_queue_arn {
        statements.push(allow(
            "AllowInterruptionQueueActions",
            &json!(["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]),
            &json!(queue),
            None,
        ));
    }
    statements.extend(pass_role_statement(scope));
    if scope.instance_profiles == InstanceProfiles::Controller {
        statements.extend(instance_profile_statements(scope));
    }
    statements.push(allow(
        "AllowAPIServerEndpointDiscovery",
        &json!("eks:DescribeCluster"),
        &json!(format!(
            "arn:{}:eks:{}:{}:cluster/{}",
            scope.partition, scope.region, scope.account_id, scope.cluster_name
        )),
        None,
    ));
    statements.extend(scope.extra_statements.iter().cloned());
    document(&statements)
}

fn document(statements: &[Value]) -> Value {
    json!({ "Version": VERSION, "Statement": statements })
}

fn allow(sid: &str, actions: &Value, resources: &Value, condition: Option<Value>) -> Value {
    let mut statement = json!({ "Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resources });
    if let Some(condition) = condition {
        statement["Condition"] = condition;
    }
    statement
}

impl ControllerScope {
    fn ec2(&self, kind: &str) -> String {
        format!("arn:{}:ec2:{}:*:{kind}/*", self.partition, self.region)
    }

    /// Made resources carry the cluster's tag from the request on.
    fn requested(&self) -> Value {
        json!({
            "StringEquals": {
                (format!("aws:RequestTag/kubernetes.io/cluster/{}", self.cluster_name)): "owned",
                "aws:RequestTag/eks:eks-cluster-name": self.cluster_name
            },
            "StringLike": { "aws:RequestTag/karpenter.sh/nodepool": "*" }
        })
    }

    /// Existing resources carry the cluster's tag.
    fn owned(&self) -> Value {
        json!({
            "StringEquals": { (format!("aws:ResourceTag/kubernetes.io/cluster/{}", self.cluster_name)): "owned" },
            "StringLike": { "aws:ResourceTag/karpenter.sh/nodepool": "*" }
        })
    }
}

fn launch_statements(scope: &ControllerScope) -> Vec<Value> {
    let access = ["snapshot", "security-group", "subnet", "capacity-reservation", "placement-group"];
    let image = format!("arn:{}:ec2:{}::image/*", scope.partition, scope.region);
    let resources: Vec<String> = std::iter::once(image).chain(access.iter().map(|kind| scope.ec2(kind))).collect();
    let run = json!(["ec2:RunInstances", "ec2:CreateFleet"]);
    let made = ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"];
    let made: Vec<String> = made.iter().map(|kind| scope.ec2(kind)).collect();
    vec![
        allow("AllowScopedEC2InstanceAccessActions", &run, &json!(resources), None),
        allow(
            "AllowScopedEC2LaunchTemplateAccessActions",
            &run,
            &json!(scope.ec2("launch-template")),
            Some(scope.owned()),
        ),
        allow(
            "AllowScopedEC2InstanceActionsWithTags",
            &json!(["ec2:RunInstances", "ec2:CreateFleet", "ec2:CreateLaunchTemplate"]),
            &json!(made),
            Some(scope.requested()),
        ),
    ]
}

fn tagging_statements(scope: &ControllerScope) -> Vec<Value> {
    let made = ["fleet", "instance", "volume", "network-interface", "launch-template", "spot-instances-request"];
    let made: Vec<String> = made.iter().map(|kind| scope.ec2(kind)).collect();
    let mut creation = scope.requested();
    creation["StringEquals"]["ec2:CreateAction"] = json!(["RunInstances", "CreateFleet", "CreateLaunchTemplate"]);
    // Narrower than Karpenter's: all is tagged in the request that makes it, but for whose instances and volumes are that were launched with
    // others. Interfaces carry no batch, since launch templates tag them for all claims alike, and are told no claim.
    let mut naming = scope.owned();
    naming["StringLike"][format!("aws:ResourceTag/{}", labels::LAUNCH_BATCH)] = json!("*");
    naming["ForAllValues:StringEquals"] = json!({ "aws:TagKeys": ["Name", "karpenter.sh/nodeclaim"] });
    let launched = ["instance", "volume"].map(|kind| scope.ec2(kind));
    vec![
        allow("AllowScopedResourceCreationTagging", &json!("ec2:CreateTags"), &json!(made), Some(creation)),
        allow("AllowScopedResourceTagging", &json!("ec2:CreateTags"), &json!(launched), Some(naming)),
        allow(
            "AllowScopedDeletion",
            &json!(["ec2:TerminateInstances", "ec2:DeleteLaunchTemplate"]),
            &json!([scope.ec2("instance"), scope.ec2("launch-template")]),
            Some(scope.owned()),
        ),
    ]
}

fn read_statements(scope: &ControllerScope) -> Vec<Value> {
    let describe = [
        "CapacityReservations",
        "Images",
        "Instances",
        "InstanceStatus",
        "InstanceTypeOfferings",
        "InstanceTypes",
        "LaunchTemplates",
        "PlacementGroups",
        "SecurityGroups",
        "SpotPriceHistory",
        "Subnets",
    ];
    let describe: Vec<String> = describe.iter().map(|what| format!("ec2:Describe{what}")).collect();
    let public = format!("arn:{}:ssm:{}::parameter/aws/service/*", scope.partition, scope.region);
    let parameters: Vec<&str> =
        std::iter::once(public.as_str()).chain(scope.ami_ssm_parameter_arns.iter().map(String::as_str)).collect();
    vec![
        allow(
            "AllowRegionalReadActions",
            &json!(describe),
            &json!("*"),
            Some(json!({ "StringEquals": { "aws:RequestedRegion": scope.region } })),
        ),
        allow("AllowSSMReadActions", &json!("ssm:GetParameter"), &json!(parameters), None),
        allow("AllowPricingReadActions", &json!("pricing:GetProducts"), &json!("*"), None),
    ]
}

/// Whoever launches an instance passes the role that its profile holds, whoever made that.
fn pass_role_statement(scope: &ControllerScope) -> Option<Value> {
    let pass_to = json!({ "StringEquals": { "iam:PassedToService": ["ec2.amazonaws.com", "ec2.amazonaws.com.cn"] } });
    let roles = &scope.node_role_arns;
    let statement = || allow("AllowPassingInstanceRole", &json!("iam:PassRole"), &json!(roles), Some(pass_to));
    (!roles.is_empty()).then(statement)
}

fn instance_profile_statements(scope: &ControllerScope) -> Vec<Value> {
    let all = format!("arn:{}:iam::{}:instance-profile/*", scope.partition, scope.account_id);
    // Narrower than Karpenter's: those that the controller makes all lie below this path.
    let profiles = format!(
        "arn:{}:iam::{}:instance-profile/karpenter/{}/{}/*",
        scope.partition, scope.account_id, scope.region, scope.cluster_name
    );
    let cluster = format!("kubernetes.io/cluster/{}", scope.cluster_name);
    let tags = |of: &str| {
        let mut equals = json!({});
        equals[format!("aws:{of}/{cluster}")] = json!("owned");
        equals[format!("aws:{of}/topology.kubernetes.io/region")] = json!(scope.region);
        equals
    };
    let class = |of: &str| json!({ (format!("aws:{of}/karpenter.k8s.aws/ec2nodeclass")): "*" });
    let mut requested = tags("RequestTag");
    requested["aws:RequestTag/eks:eks-cluster-name"] = json!(scope.cluster_name);
    let mut both = tags("ResourceTag");
    for (key, value) in requested.as_object().into_iter().flatten() {
        both[key] = value.clone();
    }
    vec![
        allow(
            CREATE_PROFILES,
            &json!("iam:CreateInstanceProfile"),
            &json!(profiles),
            Some(json!({ "StringEquals": requested, "StringLike": class("RequestTag") })),
        ),
        allow(
            "AllowScopedInstanceProfileTagActions",
            &json!("iam:TagInstanceProfile"),
            &json!(profiles),
            Some(json!({
                "StringEquals": both,
                "StringLike": {
                    "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass": "*",
                    "aws:ResourceTag/karpenter.k8s.aws/ec2nodeclass": "*"
                }
            })),
        ),
        allow(
            "AllowScopedInstanceProfileActions",
            &json!(["iam:AddRoleToInstanceProfile", "iam:RemoveRoleFromInstanceProfile", "iam:DeleteInstanceProfile"]),
            &json!(profiles),
            Some(json!({ "StringEquals": tags("ResourceTag"), "StringLike": class("ResourceTag") })),
        ),
        allow("AllowInstanceProfileReadActions", &json!("iam:GetInstanceProfile"), &json!(all), None),
        allow("AllowUnscopedInstanceProfileListAction", &json!("iam:ListInstanceProfiles"), &json!("*"), None),
    ]
}

fn trust(principal: &Value, actions: &Value, condition: Option<Value>) -> Value {
    let mut statement = json!({ "Effect": "Allow", "Principal": principal, "Action": actions });
    if let Some(condition) = condition {
        statement["Condition"] = condition;
    }
    document(&[statement])
}

/// Returns the trust of a role that EC2 instances take.
#[must_use]
pub fn node_trust(partition: &str) -> Value {
    let service = if partition == "aws-cn" { "ec2.amazonaws.com.cn" } else { "ec2.amazonaws.com" };
    trust(&json!({ "Service": service }), &json!("sts:AssumeRole"), None)
}

/// Returns what the VPC CNI needs on the nodes of an IPv6 cluster, for which AWS manages no policy of its own.
#[must_use]
pub fn cni_ipv6_policy(partition: &str) -> Value {
    let read = [
        "AssignIpv6Addresses",
        "DescribeInstances",
        "DescribeTags",
        "DescribeNetworkInterfaces",
        "DescribeInstanceTypes",
    ];
    let read: Vec<String> = read.iter().map(|what| format!("ec2:{what}")).collect();
    let interfaces = format!("arn:{partition}:ec2:*:*:network-interface/*");
    document(&[
        allow("AllowAddresses", &json!(read), &json!("*"), None),
        allow("AllowTagsOfInterfaces", &json!("ec2:CreateTags"), &json!(interfaces), None),
    ])
}

/// Returns the trust of a role that one service account takes through the cluster's OIDC provider (IRSA).
#[must_use]
pub fn irsa_trust(oidc_provider_arn: &str, namespace: &str, service_account: &str) -> Value {
    let issuer = oidc_provider_arn.split_once(":oidc-provider/").map_or(oidc_provider_arn, |(_, issuer)| issuer);
    let condition = json!({ "StringEquals": {
        (format!("{issuer}:aud")): "sts.amazonaws.com",
        (format!("{issuer}:sub")): format!("system:serviceaccount:{namespace}:{service_account}")
    } });
    trust(&json!({ "Federated": oidc_provider_arn }), &json!("sts:AssumeRoleWithWebIdentity"), Some(condition))
}

/// Returns the trust of a role that pods take through EKS Pod Identity.
#[must_use]
pub fn pod_identity_trust() -> Value {
    trust(&json!({ "Service": "pods.eks.amazonaws.com" }), &json!(["sts:AssumeRole", "sts:TagSession"]), None)
}

/// Returns the trust of a Fargate pod execution role, limited to the profiles of one cluster.
#[must_use]
pub fn fargate_trust(partition: &str, region: &str, account_id: &str, cluster_name: &str) -> Value {
    let profiles = format!("arn:{partition}:eks:{region}:{account_id}:fargateprofile/{cluster_name}/*");
    trust(
        &json!({ "Service": "eks-fargate-pods.amazonaws.com" }),
        &json!("sts:AssumeRole"),
        Some(json!({ "ArnLike": { "aws:SourceArn": profiles } })),
    )
}

/// Returns the policy of the interruption queue: EventBridge may send for rules of the queue's own account and region, and only over TLS.
/// Without the source, any account's rule that names the queue could have nodes ended.
#[must_use]
pub fn queue_policy(queue_arn: &str) -> Value {
    let mut parts = queue_arn.split(':').skip(1);
    let mut part = || parts.next().unwrap_or_default();
    let (partition, _, region, account) = (part(), part(), part(), part());
    document(&[
        json!({
            "Sid": "EC2InterruptionPolicy",
            "Effect": "Allow",
            "Principal": { "Service": "events.amazonaws.com" },
            "Action": "sqs:SendMessage",
            "Resource": queue_arn,
            "Condition": {
                "ArnLike": { "aws:SourceArn": format!("arn:{partition}:events:{region}:{account}:rule/*") },
                "StringEquals": { "aws:SourceAccount": account }
            }
        }),
        json!({
            "Sid": "DenyHTTP",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": queue_arn,
            "Condition": { "Bool": { "aws:SecureTransport": "false" } }
        }),
    ])
}

/// Returns how many characters of a policy IAM counts: all but white space.
#[must_use]
pub fn policy_size(policy: &Value) -> usize {
    policy.to_string().chars().filter(|character| !character.is_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> ControllerScope {
        ControllerScope {
            partition: "aws".into(),
            region: "eu-west-1".into(),
            account_id: "123456789012".into(),
            cluster_name: "demo".into(),
            node_role_arns: vec!["arn:aws:iam::123456789012:role/node".into()],
            interruption_queue_arn: Some("arn:aws:sqs:eu-west-1:123456789012:karp-demo".into()),
            ..ControllerScope::default()
        }
    }

    fn statement<'a>(policy: &'a Value, sid: &str) -> &'a Value {
        policy["Statement"].as_array().expect("statements").iter().find(|s| s["Sid"] == sid).expect("the statement")
    }

    #[test]
    fn controller_may_end_only_what_is_its_clusters() {
        let policy = controller_policy(&scope());
        let deletion = statement(&policy, "AllowScopedDeletion");
        assert_eq!(deletion["Condition"]["StringEquals"]["aws:ResourceTag/kubernetes.io/cluster/demo"], "owned");
        let launch = statement(&policy, "AllowScopedEC2InstanceActionsWithTags");
        assert_eq!(launch["Condition"]["StringEquals"]["aws:RequestTag/eks:eks-cluster-name"], "demo");
        assert_eq!(
            statement(&policy, "AllowPassingInstanceRole")["Resource"][0],
            "arn:aws:iam::123456789012:role/node"
        );
    }

    #[test]
    fn what_runs_is_told_its_claim_and_nothing_else() {
        let policy = controller_policy(&scope());
        let naming = statement(&policy, "AllowScopedResourceTagging");
        let launched = json!(["arn:aws:ec2:eu-west-1:*:instance/*", "arn:aws:ec2:eu-west-1:*:volume/*"]);
        assert_eq!(naming["Resource"], launched);
        let conditions = &naming["Condition"];
        assert_eq!(conditions["StringEquals"]["aws:ResourceTag/kubernetes.io/cluster/demo"], "owned");
        assert_eq!(conditions["StringLike"]["aws:ResourceTag/karp.sh/launch-batch"], "*");
        let keys = &conditions["ForAllValues:StringEquals"]["aws:TagKeys"];
        assert_eq!(*keys, json!(["Name", "karpenter.sh/nodeclaim"]));
    }

    #[test]
    fn instance_profiles_are_changed_only_below_the_clusters_path() {
        let policy = controller_policy(&scope());
        for sid in [
            "AllowScopedInstanceProfileCreationActions",
            "AllowScopedInstanceProfileTagActions",
            "AllowScopedInstanceProfileActions",
        ] {
            let statement = statement(&policy, sid);
            let below = "arn:aws:iam::123456789012:instance-profile/karpenter/eu-west-1/demo/*";
            assert_eq!(statement["Resource"], below, "{sid}");
            assert!(statement["Condition"].to_string().contains("kubernetes.io/cluster/demo\":\"owned"), "{sid}");
        }
        assert_eq!(
            statement(&policy, "AllowInstanceProfileReadActions")["Resource"],
            "arn:aws:iam::123456789012:instance-profile/*",
            "a class may name a profile of somebody else's"
        );
    }

    #[test]
    fn controller_policy_fits_inline_with_long_names() {
        let long = ControllerScope { cluster_name: "c".repeat(100), ..scope() };
        let size = policy_size(&controller_policy(&long));
        assert!(size < INLINE_POLICY_LIMIT, "{size}");
    }

    #[test]
    fn only_unscoped_reads_have_a_star() {
        let policy = controller_policy(&scope());
        let open: Vec<&str> = policy["Statement"]
            .as_array()
            .expect("statements")
            .iter()
            .filter(|s| s["Resource"] == "*")
            .filter_map(|s| s["Sid"].as_str())
            .collect();
        assert_eq!(
            open,
            ["AllowRegionalReadActions", "AllowPricingReadActions", "AllowUnscopedInstanceProfileListAction"]
        );
    }

    #[test]
    fn without_queue_there_is_no_queue_statement() {
        let policy = controller_policy(&ControllerScope { interruption_queue_arn: None, ..scope() });
        assert!(!policy.to_string().contains("sqs:"));
    }

    #[test]
    fn who_makes_no_profiles_needs_nothing_of_iam_but_to_pass_the_role() {
        let policy = controller_policy(&ControllerScope { instance_profiles: InstanceProfiles::Terraform, ..scope() });
        let statements = policy["Statement"].as_array().expect("statements");
        let actions = statements
            .iter()
            .flat_map(|s| s["Action"].as_array().map_or_else(|| vec![s["Action"].clone()], Clone::clone));
        let iam: Vec<Value> = actions.filter(|action| action.as_str().is_some_and(|a| a.starts_with("iam:"))).collect();
        assert_eq!(iam, ["iam:PassRole"]);
        assert_eq!(InstanceProfiles::of_policy(&policy), InstanceProfiles::Terraform);
        assert_eq!(InstanceProfiles::of_policy(&controller_policy(&scope())), InstanceProfiles::Controller);
        for word in InstanceProfiles::WORDS {
            assert_eq!(InstanceProfiles::parse(word).map(InstanceProfiles::as_str), Some(word));
        }
    }

    #[test]
    fn only_rules_of_the_own_account_and_region_fill_the_queue_and_only_over_tls() {
        let arn = "arn:aws-cn:sqs:cn-north-1:123456789012:karp-demo";
        let policy = queue_policy(arn);
        let send = statement(&policy, "EC2InterruptionPolicy");
        assert_eq!(send["Principal"]["Service"], "events.amazonaws.com");
        assert_eq!(send["Resource"], arn);
        let source = &send["Condition"];
        assert_eq!(source["ArnLike"]["aws:SourceArn"], "arn:aws-cn:events:cn-north-1:123456789012:rule/*");
        assert_eq!(source["StringEquals"]["aws:SourceAccount"], "123456789012");
        let deny = statement(&policy, "DenyHTTP");
        assert_eq!((&deny["Effect"], &deny["Principal"]), (&json!("Deny"), &json!("*")));
        assert_eq!(deny["Condition"]["Bool"]["aws:SecureTransport"], "false");
    }

    #[test]
    fn irsa_trust_names_issuer_and_subject() {
        let arn = "arn:aws:iam::123456789012:oidc-provider/oidc.eks.eu-west-1.amazonaws.com/id/ABC";
        let trust = irsa_trust(arn, "karpenter", "karpenter");
        let equals = &trust["Statement"][0]["Condition"]["StringEquals"];
        assert_eq!(equals["oidc.eks.eu-west-1.amazonaws.com/id/ABC:sub"], "system:serviceaccount:karpenter:karpenter");
        assert_eq!(equals["oidc.eks.eu-west-1.amazonaws.com/id/ABC:aud"], "sts.amazonaws.com");
    }
}
