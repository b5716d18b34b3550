//! The attributes of `karp_node_class`, under the names of the EC2NodeClass API.

use serde_json::Value as Json;
use tfplugin::schema::validate;
use tfplugin::{Attribute, Type, Value};

use super::kubelet;

fn text(description: &str) -> Attribute {
    Attribute::string().optional().describe(description)
}

fn flag(description: &str) -> Attribute {
    Attribute::bool().optional().describe(description)
}

fn number(description: &str) -> Attribute {
    Attribute::number().optional().describe(description)
}

fn map(description: &str) -> Attribute {
    Attribute::map(Type::String).optional().describe(description)
}

fn choice<const N: usize>(choices: [&'static str; N], description: &str) -> Attribute {
    text(description).validate(validate::one_of(choices))
}

/// Lists of the status, by attribute and field, with what each element tells.
const FOUND: [(&str, &str, &[&str]); 4] = [
    ("amis", "amis", &["id", "name"]),
    ("subnets", "subnets", &["id", "zone", "zone_id"]),
    ("security_groups", "securityGroups", &["id", "name"]),
    ("conditions", "conditions", &["type", "status", "reason", "message"]),
];

/// Declares what the controller has found for the class.
pub fn status() -> Attribute {
    let told = |what: &str| Attribute::string().computed().describe(what);
    let list = |name: &'static str, what: &str| {
        let elements = FOUND.iter().find(|(attribute, ..)| *attribute == name).map_or(&[][..], |(.., parts)| parts);
        let element = |part: &&'static str| (*part, told(&format!("The {}.", part.replace('_', " "))));
        (name, Attribute::nested_list(elements.iter().map(element)).computed().describe(what))
    };
    Attribute::nested_single([
        list("amis", "The images that new nodes run."),
        list("subnets", "The subnets that new nodes are placed in."),
        list("security_groups", "The security groups that new nodes get."),
        ("instance_profile", told("The instance profile of new nodes.")),
        list("conditions", "What is well and what is not: `Ready` and the conditions that it follows from."),
    ])
    .computed()
    .use_state_for_unknown()
    .describe("What the controller had found for the class at the last refresh; null before the first one, and without a controller.")
}

/// Reads what the controller has found.
pub fn observed(status: &Json) -> Vec<(&'static str, Value)> {
    if !status.is_object() {
        return Vec::new();
    }
    let text = |value: &Json| Value::from(value.as_str());
    let mut found = Value::object([("instance_profile", text(&status["instanceProfile"]))]);
    for (attribute, field, parts) in FOUND {
        let element = |one: &Json| {
            let part = |part: &&'static str| {
                let field = if *part == "zone_id" { "zoneID" } else { part };
                (*part, text(&one[field]))
            };
            Value::object(parts.iter().map(part))
        };
        let all = status[field].as_array().into_iter().flatten().map(element).collect();
        found.set(attribute, Value::List(all));
    }
    vec![("status", found)]
}

/// Gives the attributes of the spec.
pub fn attributes() -> Vec<(&'static str, Attribute)> {
    let mut all = selectors();
    all.extend([
        ("role", text("The IAM role of the nodes; the controller makes an instance profile for it. This or `instance_profile`.")),
        ("instance_profile", text("The instance profile of the nodes. This or `role`.")),
        ("user_data", text("User data, merged with what the family needs.")),
        ("tags", map("Tags of instances, volumes and launch templates.")),
        ("kubelet", kubelet::attribute()),
        ("block_device_mappings", block_device_mappings()),
        ("instance_store_policy", choice(["RAID0"], "What is done with local disks.")),
        ("detailed_monitoring", flag("Whether EC2 monitors instances in detail.")),
        ("associate_public_ip_address", flag("Whether instances get a public address.")),
        ("ip_prefix_count", number("How many address prefixes the first network interface gets.")),
        ("metadata_options", metadata_options()),
        ("network_interfaces", network_interfaces()),
        ("connection_tracking", connection_tracking()),
        (
            "cpu_options",
            Attribute::nested_single([(
                "nested_virtualization",
                choice(["enabled", "disabled"], "Whether instances may run virtual machines."),
            )])
            .optional()
            .describe("Options of the processor."),
        ),
        (
            "enclave_options",
            Attribute::nested_single([(
                "enabled",
                Attribute::bool().required().describe("Whether instances may run enclaves; only types that can are then used."),
            )])
            .optional()
            .describe("Nitro Enclaves."),
        ),
        ("context", text("Reserved by EC2.")),
    ]);
    all
}

fn selector_tags() -> Attribute {
    map("Tags that must all be there; `*` stands for any value.")
}

/// Declares the terms that select images.
pub fn ami_selector_terms() -> Attribute {
    Attribute::nested_list([
        ("alias", text("Family and version, such as `al2023@latest` or `bottlerocket@1.40.0`; then the only term.")),
        ("tags", selector_tags()),
        ("id", text("The image's id.")),
        ("name", text("The image's name.")),
        ("owner", text("The image's owner: an account id, `self` or `amazon`.")),
        ("ssm_parameter", text("The name or ARN of an SSM parameter that holds the image's id.")),
    ])
    .required()
    .describe("Which images instances may run; terms are alternatives.")
}

fn selectors() -> Vec<(&'static str, Attribute)> {
    let subnet = Attribute::nested_list([("tags", selector_tags()), ("id", text("The subnet's id."))]);
    let security_group = Attribute::nested_list([
        ("tags", selector_tags()),
        ("id", text("The group's id.")),
        ("name", text("The group's name.")),
    ]);
    let reservation = Attribute::nested_list([
        ("tags", selector_tags()),
        ("id", text("The reservation's id.")),
        ("owner_id", text("The account that owns the reservation.")),
        ("instance_match_criteria", choice(["open", "targeted"], "Which instances the reservation takes.")),
    ]);
    let placement = Attribute::nested_single([("name", text("The group's name.")), ("id", text("The group's id."))]);
    vec![
        ("ami_selector_terms", ami_selector_terms()),
        (
            "ami_family",
            choice(
                ["AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"],
                "The family of images, where no alias tells it.",
            ),
        ),
        (
            "subnet_selector_terms",
            subnet.required().describe("Which subnets instances may be placed in; terms are alternatives."),
        ),
        (
            "security_group_selector_terms",
            security_group.required().describe("Which security groups instances get; terms are alternatives."),
        ),
        (
            "capacity_reservation_selector_terms",
            reservation.optional().describe("Which capacity reservations may be used."),
        ),
        ("placement_group_selector", placement.optional().describe("Which placement group instances are put in.")),
    ]
}

fn block_device_mappings() -> Attribute {
    let ebs = Attribute::nested_single([
        ("delete_on_termination", flag("Whether the volume goes with its instance.")),
        ("encrypted", flag("Whether the volume is encrypted.")),
        ("iops", number("Operations per second.")),
        ("kms_key_id", text("The key that encrypts the volume.")),
        ("snapshot_id", text("The snapshot that the volume is made from.")),
        ("throughput", number("MiB per second.")),
        ("volume_initialization_rate", number("MiB per second by which the volume is filled from its snapshot.")),
        ("volume_size", text("The size, such as `20Gi`.")),
        ("volume_type", choice(["standard", "io1", "io2", "gp2", "sc1", "st1", "gp3"], "The type of the volume.")),
    ]);
    Attribute::nested_list([
        ("device_name", text("The device, such as `/dev/xvda`.")),
        ("root_volume", flag("Whether the kubelet's data lies on this disk.")),
        ("ebs", ebs.optional().describe("Settings of the EBS volume.")),
    ])
    .optional()
    .describe("Disks; the family's own when left out.")
}

fn metadata_options() -> Attribute {
    Attribute::nested_single([
        ("http_endpoint", choice(["enabled", "disabled"], "Whether the service answers.")),
        ("http_protocol_ipv6", choice(["enabled", "disabled"], "Whether it answers over IPv6.")),
        ("http_put_response_hop_limit", number("How many network hops an answer may travel.")),
        ("http_tokens", choice(["required", "optional"], "Whether a session token is needed.")),
    ])
    .optional()
    .describe("How instances reach the instance metadata service. The API's defaults: enabled, IPv4 only, one hop, tokens required.")
}

fn network_interfaces() -> Attribute {
    let place = |what: &str| Attribute::number().required().describe(what);
    Attribute::nested_list([
        ("network_card_index", place("The network card that carries it.")),
        ("device_index", place("Its place on the card.")),
        (
            "interface_type",
            Attribute::string().required().validate(validate::one_of(["interface", "efa-only"])).describe("Its kind."),
        ),
    ])
    .optional()
    .describe("Network interfaces, where they differ from one for each instance.")
}

fn connection_tracking() -> Attribute {
    Attribute::nested_single([
        ("tcp_established_timeout", number("Seconds, of established TCP connections.")),
        ("udp_stream_timeout", number("Seconds, of UDP flows with more than one exchange.")),
        ("udp_timeout", number("Seconds, of UDP flows with one exchange.")),
    ])
    .optional()
    .describe("Idle timeouts of tracked connections.")
}
