//! `karp_aws_auth_entry`: lets nodes with a role join a cluster that knows its nodes by the ConfigMap `aws-auth`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use karp_domain::api::labels::UNFINISHED;
use karp_kube::Error;
use kube::Client;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use tfplugin::schema::validate;
use tfplugin::{Attribute, Context, Diagnostics, PlannedChange, Resource, Schema, Timeouts, Type, Value, async_trait};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::custom_object::{failure, needs};
use crate::manifests::FIELD_MANAGER;
use crate::manifests::aws_auth::{Entry, MapRoles};
use crate::marks::Mark;
use crate::provider::{Handle, Part};
use crate::report::{Failure, Kind};
use crate::session::{Session, borne};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "aws-auth";
const KEY: &str = "mapRoles";
/// Attempts are this far apart.
const PAUSE: Duration = Duration::from_millis(250);
/// An API server that does not answer is borne this long.
const PATIENCE: Duration = Duration::from_secs(30);
/// Entries of one run take turns: they are parts of one object, and one that is written has all others read it again.
static TURN: Mutex<()> = Mutex::const_new(());
const NODE_NAME: &str = "system:node:{{EC2PrivateDNSName}}";
const NODE_GROUPS: [&str; 2] = ["system:bootstrappers", "system:nodes"];

/// One entry of `aws-auth`.
pub struct AwsAuthEntry {
    handle: Arc<Handle>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Model {
    id: Option<String>,
    role_arn: String,
    username: String,
    groups: BTreeSet<String>,
    adopt: Option<bool>,
}

impl Model {
    fn entry(&self) -> Entry {
        let groups = self.groups.iter().cloned().collect();
        Entry { role_arn: self.role_arn.clone(), username: self.username.clone(), groups }
    }
}

/// What is known of an earlier attempt to write the same.
#[derive(Clone, Copy, PartialEq)]
enum Earlier {
    /// There was none, or it was refused.
    None,
    /// Nobody knows whether it was carried out.
    Unanswered,
    /// The ConfigMap says that a creation wrote the entry: this one, or one of a run that died.
    Begun,
}

/// The annotation of the ConfigMap that marks an entry: an entry itself has no room for a mark.
struct Note {
    key: String,
    /// The mark of a creation; what is written otherwise has none.
    mark: Option<Mark>,
}

impl Note {
    fn of(role_arn: &str, mark: Option<Mark>) -> Self {
        let digest = hex::encode(Sha256::digest(role_arn.as_bytes()));
        Self { key: format!("{UNFINISHED}-{}", &digest[..16]), mark }
    }

    /// Says whether an earlier creation of the entry may have been carried out, for all that is known.
    fn continues(&self, live: Option<&ConfigMap>) -> bool {
        let found = live.and_then(|map| map.metadata.annotations.as_ref()?.get(&self.key));
        self.mark.as_ref().is_some_and(|mark| mark.continues(found.map(String::as_str)))
    }

    /// Says whether a mark is there that nothing stands for any more: what is written now has none.
    fn is_stale(&self, live: Option<&ConfigMap>) -> bool {
        let is_there =
            live.is_some_and(|map| map.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(&self.key)));
        self.mark.is_none() && is_there
    }

    fn write(&self, metadata: &mut ObjectMeta) {
        match (&self.mark, &mut metadata.annotations) {
            (Some(mark), annotations) => {
                annotations.get_or_insert_default().insert(self.key.clone(), mark.text().to_owned());
            }
            (None, Some(annotations)) => drop(annotations.remove(&self.key)),
            (None, None) => (),
        }
    }
}

/// What is to be done with the entries; `false` leaves the ConfigMap untouched.
type Edit<'a> = &'a (dyn Fn(&mut MapRoles, Earlier) -> Result<bool, Failure> + Sync);

impl AwsAuthEntry {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn put(&self, ctx: &Context, planned: &Value, adopt: bool, mark: Option<Mark>) -> Result<Value, Diagnostics> {
        let session = self.handle.session();
        check_mode(ctx, &session).await?;
        let model: Model = tfplugin::from_value(planned)?;
        let entry = model.entry();
        let doing = format!("enter {} in {NAMESPACE}/{NAME}", model.role_arn);
        let edit = |roles: &mut MapRoles, earlier: Earlier| {
            let same = |found: &Entry| {
                found.username == entry.username
                    && found.groups.iter().collect::<BTreeSet<_>>() == entry.groups.iter().collect()
            };
            match roles.find(&entry.role_arn) {
                Some(found) if same(&found) && (adopt || earlier != Earlier::None) => Ok(false),
                Some(found) if !adopt && earlier != Earlier::Begun => {
                    let what = format!("the role has an entry already, as {:?}", found.username);
                    Err(Failure::new(Kind::Exists, &doing, what).at("role_arn"))
                }
                _ => {
                    roles.put(&entry);
                    Ok(true)
                }
            }
        };
        let client = reached(ctx, &session).await?;
        let note = Note::of(&model.role_arn, mark);
        change(ctx, &client, &doing, &note, &edit).await?;
        if note.mark.is_some() {
            let note = Arc::new(note);
            session.finishing().after_answer(move || {
                let (client, note) = (client.clone(), Arc::clone(&note));
                async move { unmark(&client, &note).await }
            });
        }
        Ok(planned.clone().with("id", model.role_arn))
    }
}

#[async_trait]
impl Resource for AwsAuthEntry {
    fn type_name(&self) -> &'static str {
        "karp_aws_auth_entry"
    }

    fn schema(&self) -> Schema {
        let groups: Vec<Value> = NODE_GROUPS.map(Value::from).to_vec();
        Schema::new(
            "One entry of the ConfigMap `kube-system/aws-auth`, by which older clusters know their nodes: nodes with this role may join. \
             Entries of others are kept, and two applies at the same time do not lose each other's. Prefer `karp_access_entry` where the \
             cluster's authentication mode is `API` or `API_AND_CONFIG_MAP`.",
        )
        .attribute("id", Attribute::string().computed().use_state_for_unknown().describe("The role's ARN."))
        .attribute(
            "role_arn",
            Attribute::string().required().requires_replace().validate(validate::role_arn()).describe(
                "The ARN of the nodes' role. The ConfigMap gets it without the role's path, as EKS wants it.",
            ),
        )
        .attribute(
            "username",
            Attribute::string().default(NODE_NAME).validate(validate::length(1, 253)).describe("Who a bearer of the role is in the cluster."),
        )
        .attribute(
            "groups",
            Attribute::set(Type::String).default(Value::List(groups)).describe(
                "The groups of a bearer of the role; those of a Linux node when left out. Windows nodes also need `eks:kube-proxy-windows`.",
            ),
        )
        .attribute(
            "adopt",
            Attribute::bool().optional().describe(
                "Take over an entry of this role that exists already; the provider block's `adopt_existing` when left out.",
            ),
        )
        .timeouts(Timeouts::default())
    }

    async fn plan(&self, _ctx: &Context, change: &mut PlannedChange) -> Diagnostics {
        if !change.is_destroy() && (change.is_create() || change.changed("role_arn")) {
            let id = change.planned.get("role_arn").clone();
            change.planned.set("id", id);
        }
        Diagnostics::new()
    }

    async fn create(&self, ctx: &Context, planned: Value) -> Result<Value, Diagnostics> {
        let adopt = planned.get("adopt").as_bool().unwrap_or(self.handle.session().model().adopt_existing);
        self.put(ctx, &planned, adopt, Some(Mark::new())).await
    }

    async fn read(&self, ctx: &Context, state: Value) -> Result<Option<Value>, Diagnostics> {
        let session = self.handle.session();
        let arn = state.get("role_arn").as_str().unwrap_or_default();
        let look = async {
            let client = session.kube_of(ctx).await?;
            let map = find(&client).await.map_err(|error| failure(format!("read {NAMESPACE}/{NAME}"), error))?;
            let roles = parse(map.as_ref())?;
            Ok(roles.find(arn).map(|found| {
                let groups: Vec<Value> =
                    found.groups.into_iter().collect::<BTreeSet<_>>().into_iter().map(Value::from).collect();
                state.clone().with("id", arn).with("username", found.username).with("groups", Value::List(groups))
            }))
        };
        session.refresh(ctx, needs(&session), &state, look).await
    }

    async fn update(&self, ctx: &Context, _prior: Value, planned: Value) -> Result<Value, Diagnostics> {
        self.put(ctx, &planned, true, None).await
    }

    async fn delete(&self, ctx: &Context, prior: Value) -> Result<(), Diagnostics> {
        let session = self.handle.session();
        let arn = prior.get("role_arn").as_str().unwrap_or_default();
        let doing = format!("take {arn} out of {NAMESPACE}/{NAME}");
        let note = Note::of(arn, None);
        change(ctx, &reached(ctx, &session).await?, &doing, &note, &|roles, _| Ok(roles.remove(arn))).await
    }

    async fn import(&self, _ctx: &Context, id: &str) -> Result<Value, Diagnostics> {
        Ok(Value::object([("id", id), ("role_arn", id)]))
    }
}

/// Refuses a cluster that does not read the ConfigMap. Where `kubernetes` says how to reach it, EKS may have nothing to say of it, or not to
/// whoever runs this: then nothing is known.
async fn check_mode(ctx: &Context, session: &Session) -> Result<(), Failure> {
    let Some(name) = session.cluster_name() else { return Ok(()) };
    if session.model().unknown(Part::Aws).is_some() {
        return Ok(());
    }
    let cluster = if session.model().kubernetes.is_some() {
        let seen = session.foresee(ctx, async { session.cluster(name).await.ok() }).await;
        let Some(cluster) = seen else { return Ok(()) };
        cluster
    } else {
        session.cluster(name).await?
    };
    if cluster.authentication_mode.as_deref() != Some("API") {
        return Ok(());
    }
    let doing = format!("use {NAMESPACE}/{NAME} of EKS cluster {name:?}");
    Err(Failure::new(Kind::Invalid, doing, "its authentication mode is API: it does not read this ConfigMap")
        .with_fix("Use `karp_access_entry` instead."))
}

fn api(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), NAMESPACE)
}

async fn find(client: &Client) -> Result<Option<ConfigMap>, Error> {
    Ok(api(client).get_opt(NAME).await?)
}

fn parse(map: Option<&ConfigMap>) -> Result<MapRoles, Failure> {
    let text = map.and_then(|map| map.data.as_ref()?.get(KEY)).map_or("", String::as_str);
    MapRoles::parse(text).map_err(|what| {
        Failure::new(Kind::Invalid, format!("read {NAMESPACE}/{NAME}"), what)
            .with_fix("Correct it with `kubectl -n kube-system edit configmap aws-auth`; it was left as it is.")
    })
}

/// Gives a client of the cluster; an API server that does not answer is waited for as long as a change of the entries is.
async fn reached(ctx: &Context, session: &Session) -> Result<Client, Diagnostics> {
    Ok(borne(ctx, "reach the API server", || session.kube_of(ctx)).await??)
}

/// Changes the entries. The version that was read is sent along, so that a change of others in between is read again and not lost.
async fn change(ctx: &Context, client: &Client, doing: &str, note: &Note, edit: Edit<'_>) -> Result<(), Diagnostics> {
    let mut earlier = Earlier::None;
    let mut failing_since = None;
    loop {
        let attempt = async {
            let _turn = TURN.lock().await;
            attempt(client, doing, note, edit, &mut earlier).await
        };
        // Cut off, a write may have been done all the same.
        let error = match ctx.carry_out(attempt).await? {
            Ok(done) => return Ok(done?),
            Err(error) => error,
        };
        match error {
            // Others were faster. They come to an end, and the operation's limit holds besides.
            Error::Stale { .. } => (earlier, failing_since) = (Earlier::None, None),
            error if error.is_transient() => {
                if failing_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(failure(doing, error).into());
                }
            }
            error => return Err(failure(doing, error).into()),
        }
        ctx.sleep(PAUSE).await?;
    }
}

/// Reads the entries, edits them and writes them once.
async fn attempt(
    client: &Client,
    doing: &str,
    note: &Note,
    edit: Edit<'_>,
    earlier: &mut Earlier,
) -> Result<Result<(), Failure>, Error> {
    let live = find(client).await?;
    if note.continues(live.as_ref()) {
        *earlier = Earlier::Begun;
    }
    let stale = note.is_stale(live.as_ref());
    let edited = parse(live.as_ref()).and_then(|mut roles| Ok((edit(&mut roles, *earlier)? || stale).then_some(roles)));
    let text = edited.and_then(|roles| {
        let text = roles.map(|roles| roles.render()).transpose();
        text.map_err(|what| Failure::new(Kind::Unexpected, doing, what))
    });
    match text {
        Ok(Some(text)) => {
            *earlier = Earlier::Unanswered;
            write(client, live, note, text).await.map(Ok)
        }
        Ok(None) => Ok(Ok(())),
        Err(refused) => Ok(Err(refused)),
    }
}

/// Takes the mark of an entry off the ConfigMap.
async fn unmark(client: &Client, note: &Note) -> Result<(), Failure> {
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let without = json!({ "metadata": { "annotations": { &note.key: null } } });
    let patched = api(client).patch(NAME, &params, &Patch::Merge(without)).await;
    patched.map(drop).map_err(|error| failure(format!("take a mark off {NAMESPACE}/{NAME}"), error.into()))
}

async fn write(client: &Client, live: Option<ConfigMap>, note: &Note, text: String) -> Result<(), Error> {
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    match live {
        Some(mut map) => {
            map.data.get_or_insert_default().insert(KEY.to_owned(), text);
            note.write(&mut map.metadata);
            api(client).replace(NAME, &params, &map).await?;
        }
        None => {
            let mut metadata = ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            };
            note.write(&mut metadata);
            let data = Some(BTreeMap::from([(KEY.to_owned(), text)]));
            api(client).create(&params, &ConfigMap { metadata, data, ..ConfigMap::default() }).await?;
        }
    }
    Ok(())
}
