//! What resources take over from the provider block or derive from the cluster's name: `cluster_name`, `name`, `tags_all`, `adopt`.

use tfplugin::schema::validate::{self, Validator};
use tfplugin::{Attribute, Diagnostic, Diagnostics, PlannedChange, Schema, Type, Value};

use crate::aws::names;
use crate::aws::tags::valid_tags;
use crate::session::{self, Session};

/// Adds `cluster_name`, which the provider block gives when the resource does not.
pub fn cluster_name(schema: Schema) -> Schema {
    schema.attribute("cluster_name", cluster_name_attribute())
}

/// Declares `cluster_name` for a resource to which a change means something else than an update.
pub fn cluster_name_attribute() -> Attribute {
    Attribute::string()
        .optional()
        .computed()
        .validate(crate::provider::cluster_name())
        .describe("The EKS cluster; the provider block's `cluster_name` when left out.")
}

/// Adds `tags` and `tags_all`.
pub fn tags(schema: Schema) -> Schema {
    schema
        .attribute(
            "tags",
            Attribute::map(Type::String)
                .optional()
                .validate(valid_tags())
                .describe("Tags of the object; they win over `default_tags`."),
        )
        .attribute(
            "tags_all",
            Attribute::map(Type::String).computed().describe(
                "All tags that karp keeps on the object: `default_tags` and `tags` without those that `ignore_tags` covers, and \
                 `karp.sh/cluster` with the cluster's name. Tags that others put there are left alone.",
            ),
        )
}

/// Adds `region`.
pub fn region(schema: Schema) -> Schema {
    let region = validate::text("must be an AWS region such as \"eu-west-1\"", names::is_region);
    schema.attribute(
        "region",
        Attribute::string().optional().validate(region).describe(
            "The AWS region of the object; the provider block's `region` when left out. Where that is another region than the object's, \
             it is replaced; writing down the region that it is in changes nothing in AWS. An import takes it as `@REGION` behind the id.",
        ),
    )
}

/// Splits an import id from the region behind it: `ID@REGION`.
pub fn id_and_region(id: &str) -> (&str, Option<&str>) {
    match id.rsplit_once('@') {
        Some((id, region)) if names::is_region(region) => (id, Some(region)),
        _ => (id, None),
    }
}

/// Adds `id` and `arn`.
pub fn id_and_arn(schema: Schema, id: &str) -> Schema {
    schema
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe(id))
        .attribute("arn", Attribute::string().computed().use_state_for_unknown().describe("The ARN."))
}

/// Adds `adopt`.
pub fn adopt(schema: Schema) -> Schema {
    schema.attribute(
        "adopt",
        Attribute::bool().optional().describe(
            "Take over an object of this name that exists already, unless it is tagged for another cluster; the provider block's \
             `adopt_existing` when left out.",
        ),
    )
}

/// Adds a name that is derived from the cluster's when left out, and what else it may begin with then.
pub fn name(schema: Schema, prefix: &str, longest: usize) -> Schema {
    let valid = aws_name(names::longest_prefix(longest));
    with_prefix(schema.attribute("name", name_attribute(prefix, longest)), prefix, valid)
}

/// Adds `name_prefix` beside a name. The rest of the name is the cluster's: it is known at plan, and the same in every plan.
pub fn with_prefix(schema: Schema, prefix: &str, valid: Validator) -> Schema {
    schema
        .attribute(
            "name_prefix",
            Attribute::string()
                .optional()
                .validate(valid)
                .describe(format!("What the name begins with in place of `{prefix}`, where `name` is left out.")),
        )
        .conflicts(["name", "name_prefix"])
}

fn name_attribute(prefix: &str, longest: usize) -> Attribute {
    Attribute::string().optional().computed().requires_replace().validate(aws_name(longest)).describe(format!(
        "The name; `{prefix}` and the cluster's name when left out, shortened with a digest to {longest} characters."
    ))
}

/// Checks a name as IAM, SQS and EventBridge allow it, in the set of characters that all of them take.
pub fn aws_name(longest: usize) -> Validator {
    validate::text(
        format!("must be 1 to {longest} characters: letters, digits and any of _ - . + = , @"),
        move |text| {
            (1..=longest).contains(&text.len())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.+=,@".contains(c))
        },
    )
}

/// Declares the path of an object of IAM, in the characters and the length that IAM takes.
pub fn path(what: &str) -> Attribute {
    let valid = validate::text("must begin and end with /, in up to 512 visible characters of ASCII", is_path);
    Attribute::string().default("/").requires_replace().validate(valid).describe(what)
}

fn is_path(text: &str) -> bool {
    let framed = text == "/" || (text.len() > 2 && text.starts_with('/') && text.ends_with('/'));
    framed && text.len() <= 512 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Checks a role's description as IAM allows it, which is in Latin-1.
pub fn iam_description() -> Validator {
    validate::text("must be up to 1000 characters of Latin-1, which has no dash but -", |text| {
        let is_latin = |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{a1}'..='\u{ff}');
        text.chars().count() <= 1000 && text.chars().all(is_latin)
    })
}

/// Checks a name of the characters that every service takes.
pub fn plain_name(longest: usize) -> Validator {
    validate::text(format!("must be 1 to {longest} letters, digits, - and _"), move |text| {
        (1..=longest).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    })
}

/// Refuses to change an object that was imported or moved here and was not looked at since: what is not known of it would seem to differ,
/// and an attribute that cannot be changed would replace it.
pub fn check_read(change: &PlannedChange) -> Diagnostics {
    if !change.is_update() || !session::is_bare(&change.prior) {
        return Diagnostics::new();
    }
    unread(change)
}

/// Says that an object was imported or moved here and not looked at since.
pub fn unread(change: &PlannedChange) -> Diagnostics {
    let id = change.prior.get("id").as_str().unwrap_or_default();
    Diagnostic::error(
        format!("{id:?} was not looked at yet"),
        "It was imported or moved here, and nothing is known of it to plan from. Plan and apply once without `-refresh=false` and \
         `offline_plan`, and with a provider block whose values are known before the apply.",
    )
    .into()
}

/// Plans `cluster_name`; says so when neither the resource nor the provider block has it.
pub fn plan_cluster_name(session: &Session, change: &mut PlannedChange) -> Diagnostics {
    let mut found = check_read(change);
    if change.is_destroy() || !change.config.get("cluster_name").is_null() {
        return found;
    }
    let name = session.planned_cluster_name();
    if name.is_null() {
        found.error(
            "cluster_name",
            "The cluster's name is missing",
            "Set `cluster_name` here, or in the provider block for all resources.",
        );
    }
    change.planned.set("cluster_name", name);
    found
}

/// Plans `name` when the user left it out: a function of the prefix and the cluster's name alone, so that it is the same in every plan.
pub fn plan_name(change: &mut PlannedChange, prefix: &str, longest: usize) {
    if change.is_destroy() || !change.config.get("name").is_null() {
        return;
    }
    let name = match (change.planned.get("name_prefix"), change.planned.get("cluster_name").as_str()) {
        (Value::Unknown, _) | (_, None) => Value::Unknown,
        (given, Some(cluster)) => Value::from(names::fit(given.as_str().unwrap_or(prefix), cluster, longest)),
    };
    change.planned.set("name", name);
    if change.is_update() && change.changed("name") {
        change.replace("name");
    }
}

/// Plans `tags_all`; says so when the provider block ignores what the user wrote here.
pub fn plan_tags(session: &Session, change: &mut PlannedChange) -> Diagnostics {
    let mut found = Diagnostics::new();
    if change.is_destroy() {
        return found;
    }
    let all = session.tags_all(change.planned.get("tags"), change.planned.get("cluster_name"));
    change.planned.set("tags_all", all);
    let ignored = &session.model().ignore_tags;
    let written = change.config.get("tags").as_map().into_iter().flatten().map(|(key, _)| key.as_str());
    let both: Vec<&str> = written.filter(|key| ignored.covers(key)).collect();
    if !both.is_empty() {
        found.warning(
            "tags",
            "Tags are ignored",
            format!(
                "`ignore_tags` of the provider block covers {}: karp does not put it on the object.",
                both.join(", ")
            ),
        );
    }
    found
}

/// Plans `region`: where it comes to another region than the object's, that is a replacement. Comes before what a replacement leaves open.
pub async fn plan_region(session: &Session, change: &mut PlannedChange) {
    if !change.is_update() || !change.changed("region") {
        return;
    }
    let own = session.region().await;
    let goal = match change.planned.get("region") {
        Value::Null => own.clone(),
        region => region.as_str().map(str::to_owned),
    };
    let home = session::region_of(&change.prior).map(str::to_owned).or(own);
    // Not known is not the same.
    if goal.is_none() || goal != home {
        change.replace("region");
    }
}

/// Plans an object that belongs to one cluster for life and takes its own name from elsewhere; `computed` is what a replacement leaves open.
pub fn plan_cluster_member(session: &Session, change: &mut PlannedChange, computed: &[&str]) -> Diagnostics {
    let mut found = plan_cluster_name(session, change);
    if change.is_destroy() {
        return found;
    }
    // An import may not have found out which cluster it belongs to.
    if change.is_update() && !change.prior.get("cluster_name").is_null() && change.changed("cluster_name") {
        change.replace("cluster_name");
    }
    found.extend(plan_tags(session, change));
    reopen_on_replace(change, computed);
    found
}

/// Leaves computed attributes open in a replacement: they describe an object that will be gone.
pub fn reopen_on_replace(change: &mut PlannedChange, computed: &[&str]) {
    if change.is_update() && !change.requires_replace.is_empty() {
        for name in computed {
            change.planned.set(*name, Value::Unknown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_iam_refuses_is_refused_at_plan() {
        let long = format!("/{}/", "a".repeat(511));
        for (path, is_fine) in
            [("/", true), ("/karp/", true), ("/a/b-c/", true), ("//", false), ("/a b/", false), ("/é/", false)]
        {
            assert_eq!(is_path(path), is_fine, "{path}");
        }
        assert!(!is_path("karp") && !is_path("/karp") && !is_path(&long));
        let description = |text: &str| iam_description().check(&Value::from(text)).is_ok();
        assert!(description("") && description("Nodes of the cluster's\nown, in Zürich"));
        assert!(!description("nodes — of karp") && !description(&"a".repeat(1001)));
    }
}
