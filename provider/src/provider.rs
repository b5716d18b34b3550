//! The provider block: where AWS and the cluster are, and as whom to call them.

mod aws;
mod kubernetes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use karp_aws::config::Settings;
use serde::{Deserialize, Deserializer};
use tfplugin::schema::validate::{self, Validator};
use tfplugin::{
    Attribute, DataSource, Diagnostics, EphemeralResource, Function, Provider, Resource, Schema, Type, Value,
    async_trait,
};

pub use self::aws::Accounts;
pub use self::kubernetes::{Exec, Kubernetes};
use crate::aws::tags::{CLUSTER_KEY, Ignored, Tags, valid_tags};
use crate::cluster_token::ClusterToken;
use crate::session::Session;
use crate::{data_sources, functions, resources};

/// Answers a variable of the environment; none that is empty.
type Environment<'a> = &'a (dyn Fn(&str) -> Option<String> + 'a);

/// The parts of a provider block that stand or fall together when they are unknown at plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// All that it takes to call AWS.
    Aws,
    /// The cluster's name.
    ClusterName,
    /// All that it takes to call the API server other than by EKS.
    Kubernetes,
    /// The tags that every object gets, and those that none of them is looked at for.
    Tags,
}

impl Part {
    const ALL: [Self; 4] = [Self::Aws, Self::ClusterName, Self::Kubernetes, Self::Tags];

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Aws => &aws::ARGUMENTS,
            Self::ClusterName => &["cluster_name"],
            Self::Kubernetes => &["kubernetes"],
            Self::Tags => &["default_tags", "ignore_tags"],
        }
    }
}

/// What a refresh makes of objects in a cluster that EKS says does not exist.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingCluster {
    /// An error: a wrong name or region is likelier than a deleted cluster.
    #[default]
    Error,
    /// They went with it.
    Forget,
}

/// A provider block as known so far.
#[derive(Debug, Default)]
pub struct Model {
    pub aws: Settings,
    pub accounts: Accounts,
    pub cluster_name: Option<String>,
    pub kubernetes: Option<Kubernetes>,
    pub default_tags: Tags,
    pub ignore_tags: Ignored,
    pub offline_plan: bool,
    pub adopt_existing: bool,
    pub missing_cluster: MissingCluster,
    /// The parts in which something is unknown, each with the argument that is.
    pub unknown: BTreeMap<Part, &'static str>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Block {
    default_tags: Option<TagsBlock>,
    ignore_tags: Option<Ignored>,
    cluster_name: Option<String>,
    kubernetes: Option<Kubernetes>,
    offline_plan: Option<bool>,
    adopt_existing: Option<bool>,
    missing_cluster: Option<MissingCluster>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TagsBlock {
    #[serde(deserialize_with = "without_nulls")]
    tags: Tags,
}

impl Model {
    /// Reads a provider block; what is unknown is left out and noted.
    pub fn read(config: &Value) -> Result<Self, Diagnostics> {
        Self::read_in(config, &of_process)
    }

    fn read_in(config: &Value, environment: Environment<'_>) -> Result<Self, Diagnostics> {
        let mut unknown = BTreeMap::new();
        let mut known = config.clone();
        for part in Part::ALL {
            for argument in part.arguments() {
                if !config.get(argument).whole_known() {
                    unknown.entry(part).or_insert(*argument);
                    known.set(*argument, Value::Null);
                }
            }
        }
        let block: Block = tfplugin::from_value(&known)?;
        let aws: aws::Block = tfplugin::from_value(&known)?;
        let cluster_name = given(block.cluster_name);
        let cluster_name = if unknown.contains_key(&Part::ClusterName) {
            None
        } else {
            cluster_name.or_else(|| environment("KARP_CLUSTER_NAME"))
        };
        let nowhere = cluster_name.is_none() && !unknown.contains_key(&Part::ClusterName);
        let kubernetes = match block.kubernetes {
            Some(block) => Some(block.with_environment(environment)),
            None if nowhere => {
                Some(Kubernetes::default().with_environment(environment)).filter(Kubernetes::has_address)
            }
            None => None,
        };
        Ok(Self {
            aws: aws.into_settings(environment),
            accounts: tfplugin::from_value(&known)?,
            cluster_name,
            kubernetes,
            default_tags: block.default_tags.unwrap_or_default().tags,
            ignore_tags: block.ignore_tags.unwrap_or_default(),
            offline_plan: block.offline_plan.unwrap_or_default(),
            adopt_existing: block.adopt_existing.unwrap_or_default(),
            missing_cluster: block.missing_cluster.unwrap_or_default(),
            unknown,
        })
    }

    /// Returns the unknown argument of a part, if the part is not wholly known.
    pub fn unknown(&self, part: Part) -> Option<&'static str> {
        self.unknown.get(&part).copied()
    }
}

/// Reads a map of texts. An element that is null is left out: so comes a variable that nobody set.
fn without_nulls<'de, D: Deserializer<'de>>(given: D) -> Result<BTreeMap<String, String>, D::Error> {
    let given = BTreeMap::<String, Option<String>>::deserialize(given)?;
    Ok(given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

/// Takes a text that is empty for one that is left out, as hashicorp/aws and hashicorp/kubernetes do: modules hand such ones through.
fn given(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

/// Says whether a text, a list or an object is given, whatever the apply tells of what is unknown.
fn says(value: &Value) -> bool {
    value.is_known() && may_say(value)
}

/// Says whether a text, a list or an object is given, or may be: what is unknown may turn out to be null.
fn may_say(value: &Value) -> bool {
    !value.is_null() && value.as_str() != Some("") && *value != Value::List(Vec::new())
}

/// Answers from the environment of this process.
fn of_process(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Gives a path as shells do: `~` is the home folder.
pub fn expand(path: &str, environment: Environment<'_>) -> PathBuf {
    match path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        Some(rest) => PathBuf::from(environment("HOME").unwrap_or_default() + rest),
        None => PathBuf::from(path),
    }
}

/// Gives a path of the provider block, with the home folder of this process.
pub fn path(given: &str) -> PathBuf {
    expand(given, &of_process)
}

/// The session of the latest configuration, shared with all resources.
#[derive(Default)]
pub struct Handle(RwLock<Arc<Session>>);

impl Handle {
    /// Returns the session that is configured now.
    pub fn session(&self) -> Arc<Session> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, session: Session) {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(session.after(&current));
    }
}

/// The provider karp.
#[derive(Default)]
pub struct Karp {
    handle: Arc<Handle>,
}

#[async_trait]
impl Provider for Karp {
    fn name(&self) -> &'static str {
        "karp"
    }

    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn schema(&self) -> Schema {
        let schema = Schema::new(
            "karp puts node autoscaling of an EKS cluster under Terraform: the roles, queue and tags that it needs, the controller, and \
             the node pools. Every argument is optional; nothing is contacted before a resource needs it.",
        );
        aws::reach(aws::identity(schema))
        .attribute(
            "default_tags",
            Attribute::nested_single([(
                "tags",
                Attribute::map(Type::String).optional().validate(valid_tags()).describe("The tags."),
            )])
            .optional()
            .describe("Tags that every AWS object of this provider gets; a resource's own `tags` win."),
        )
        .attribute("ignore_tags", ignore_tags())
        .attribute(
            "cluster_name",
            text("The EKS cluster: the default of every resource's `cluster_name`, and the cluster whose API server is called; else \
                  `KARP_CLUSTER_NAME`. It may be unknown until apply.")
            .validate(validate::text(CLUSTER_NAME, |text| text.is_empty() || is_cluster_name(text))),
        )
        .attribute("kubernetes", kubernetes::attribute())
        .attribute(
            "offline_plan",
            Attribute::bool().optional().describe(
                "Plan from the state alone: nothing is refreshed from AWS or the API server. Changes made elsewhere stay unseen until \
                 the next plan without it, and what was just imported or moved cannot be planned.",
            ),
        )
        .attribute(
            "adopt_existing",
            Attribute::bool().optional().describe(
                "The default of every resource's `adopt`: take over an object that exists already, unless it is tagged for another \
                 cluster, instead of failing.",
            ),
        )
        .attribute(
            "missing_cluster",
            Attribute::string().optional().validate(validate::one_of(["error", "forget"])).describe(
                "What a refresh does where EKS says that the cluster does not exist, or another one answers than the one in which an object \
                 lives: `error` (the default), since a wrong name, region, account or context looks the same; or `forget`, for one run after \
                 the cluster was deleted outside Terraform, or made anew: CRDs, node classes, node pools, overlays, entries of `aws-auth` \
                 and the controller then count as gone, with a warning each, and where another cluster answers the teardown, too. A cluster that does not answer is never taken for one that is gone.",
            ),
        )
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let mut found = Diagnostics::new();
        found.extend(aws::validate(config, &of_process));
        found.extend(kubernetes::validate(config.get("kubernetes"), &of_process));
        found.extend(check_ignored(config));
        found
    }

    fn configure(&self, config: Value) -> Diagnostics {
        match Model::read(&config) {
            Ok(model) => {
                self.handle.replace(Session::new(model));
                Diagnostics::new()
            }
            Err(found) => found,
        }
    }

    fn resources(&self) -> Vec<Box<dyn Resource>> {
        resources::all(&self.handle)
    }

    fn data_sources(&self) -> Vec<Box<dyn DataSource>> {
        data_sources::all(&self.handle)
    }

    fn ephemeral_resources(&self) -> Vec<Box<dyn EphemeralResource>> {
        vec![Box::new(ClusterToken::new(&self.handle))]
    }

    fn functions(&self) -> Vec<Box<dyn Function>> {
        functions::all()
    }

    async fn close(&self) {
        self.handle.session().finishing().close().await;
    }
}

fn text(description: &str) -> Attribute {
    Attribute::string().optional().describe(description)
}

fn ignore_tags() -> Attribute {
    let texts = |description: &str| {
        Attribute::set(Type::String)
            .optional()
            // AWS's own limit of a key.
            .validate(validate::each(validate::length(1, 128)))
            .describe(description)
    };
    Attribute::nested_single([
        ("keys", texts("Keys of tags.")),
        ("key_prefixes", texts("How the keys of tags begin, such as `kubernetes.io/`.")),
    ])
    .optional()
    .describe(
        "Tags that others put on this provider's AWS objects, such as those of a cost tool: they are neither read into the state nor \
         planned nor removed, on no resource. `karp_discovery_tags` keeps its tag all the same.",
    )
}

/// Refuses to ignore the tag that proves whose an object is, and tells of tags that are given and ignored in one block.
fn check_ignored(config: &Value) -> Diagnostics {
    let mut found = Diagnostics::new();
    let block = config.get("ignore_tags");
    let Ok(ignored) = tfplugin::from_value::<Option<Ignored>>(block).map(Option::unwrap_or_default) else {
        return found;
    };
    if ignored.covers(CLUSTER_KEY) {
        found.error(
            "ignore_tags",
            "karp's own tag cannot be ignored",
            format!("By {CLUSTER_KEY} karp knows which cluster an object serves: choose keys and prefixes that leave it out."),
        );
    }
    let given = config.get("default_tags").get("tags").as_map().into_iter().flatten();
    let both: Vec<&str> = given.map(|(key, _)| key.as_str()).filter(|key| ignored.covers(key)).collect();
    if !both.is_empty() {
        found.warning(
            "default_tags",
            "Default tags are ignored",
            format!("`ignore_tags` covers {}, so that no object gets it from here.", both.join(", ")),
        );
    }
    found
}

/// Says whether a text begins as a URL of the web does, with a host.
fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        !rest.starts_with(['/', ':', '?']) && !rest.is_empty() && !rest.contains(char::is_whitespace)
    })
}

/// Checks a cluster's name as EKS does.
pub fn cluster_name() -> Validator {
    validate::text(CLUSTER_NAME, is_cluster_name)
}

fn is_cluster_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=100).contains(&text.len()) && text.chars().all(plain) && !text.starts_with(['-', '_'])
}

const CLUSTER_NAME: &str = "must be the name of an EKS cluster (1 to 100 letters, digits, dashes and underscores, beginning with a letter or digit)";

/// Checks a proxy's URL. Proxies are not sensitive: few have credentials, and whoever reads of one that is refused has to see which it is. So
/// credentials are left out of what is told, and the rest is told.
fn proxy_url() -> Validator {
    let must = "must be a URL with http:// or https://, such as \"http://proxy:3128\"";
    validate::address(must, |text| text.is_empty() || is_url(text))
}

#[cfg(test)]
mod tests {
    use karp_aws::config::Service;

    use super::*;

    #[test]
    fn unknown_parts_are_noted_and_left_out() {
        let config = Value::object([
            ("region", Value::from("eu-west-1")),
            ("cluster_name", Value::Unknown),
            ("default_tags", Value::object([("tags", Value::object([("a", Value::Unknown)]))])),
        ]);
        let model = Model::read(&config).unwrap();
        assert_eq!(model.aws.region.as_deref(), Some("eu-west-1"));
        assert_eq!(model.unknown(Part::ClusterName), Some("cluster_name"));
        assert_eq!(model.unknown(Part::Tags), Some("default_tags"));
        assert_eq!(model.unknown(Part::Aws), None);
    }

    #[test]
    fn endpoints_go_to_their_services() {
        let endpoints =
            Value::object([("ec2", Value::from("http://127.0.0.1:1")), ("events", Value::from("http://127.0.0.1:2"))]);
        let model = Model::read(&Value::object([("endpoints", endpoints)])).unwrap();
        assert_eq!(model.aws.endpoints[&Service::EventBridge], "http://127.0.0.1:2");
        assert_eq!(model.aws.endpoints.len(), 2);
    }

    #[test]
    fn tags_are_ignored_as_the_block_says() {
        let read = |config: &Value| Model::read(config).unwrap().ignore_tags;
        let keys = |keys: Value| Value::object([("ignore_tags", Value::Null.with("keys", keys))]);
        let one = keys(Value::from(vec!["cost"])).with("default_tags", Value::Null);
        assert!(read(&one).covers("cost") && !read(&one).covers("team"));
        assert!(Karp::default().validate(&one).is_empty());

        let unknown = Model::read(&keys(Value::Unknown)).unwrap();
        assert_eq!(unknown.unknown(Part::Tags), Some("ignore_tags"));
        assert!(Karp::default().validate(&keys(Value::Unknown)).is_empty());

        let own = Karp::default().validate(&keys(Value::from(vec![CLUSTER_KEY])));
        assert!(own.has_errors() && own.to_string().contains("ignore_tags"), "{own}");
        let tags = Value::object([("tags", Value::object([("cost", "1")]))]);
        let both = Karp::default().validate(&one.with("default_tags", tags));
        assert!(!both.has_errors() && both.to_string().contains("Default tags are ignored"), "{both}");
    }

    #[test]
    fn a_tag_without_a_value_is_left_out() {
        let tags = Value::object([("team", Value::from("a")), ("cost", Value::Null)]);
        let model = Model::read(&Value::object([("default_tags", Value::object([("tags", tags)]))])).unwrap();
        assert_eq!(model.default_tags, Tags::from([("team".to_owned(), "a".to_owned())]));
        let none = Value::object([("default_tags", Value::object([("tags", Value::Null)]))]);
        assert!(Model::read(&none).unwrap().default_tags.is_empty());
    }

    #[test]
    fn the_cluster_of_the_environment_counts_where_none_is_named() {
        let environment = |name: &str| (name == "KUBE_CONFIG_PATH").then(|| "~/env".to_owned());
        let read = |config: &Value| Model::read_in(config, &environment).unwrap().kubernetes;
        let path = |config: &Value| read(config).and_then(|given| given.config_path);
        let named = Value::object([("cluster_name", "prod")]);
        assert_eq!(path(&Value::object([("region", "eu-west-1")])).as_deref(), Some("~/env"));
        assert!(path(&named).is_none(), "EKS gives the address");
        assert!(path(&Value::object([("cluster_name", Value::Unknown)])).is_none(), "EKS may give the address");
        let empty = named.with("kubernetes", Value::object([("host", Value::Null)]));
        assert_eq!(path(&empty).as_deref(), Some("~/env"));
        assert_eq!(expand("~/a", &|_: &str| Some("/home/me".to_owned())), PathBuf::from("/home/me/a"));
        assert_eq!(expand("~other/a", &|_: &str| None), PathBuf::from("~other/a"));
    }
}
