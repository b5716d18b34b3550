//! `karp_amis`: the images that a node class with these terms would run now.

use std::collections::BTreeMap;
use std::sync::Arc;

use karp_aws::images::{self, Alias, Image, Term, Variant};
use karp_aws::parameters::Parameters;
use serde::{Deserialize, Serialize};
use tfplugin::{Attribute, Context, DataSource, Diagnostic, Diagnostics, Schema, Type, Value, async_trait};

use super::cluster::{name_of, region_attribute};
use crate::provider::Handle;
use crate::report::Failure;
use crate::resources::ami_selector_terms;

/// The images that terms select.
pub struct Amis {
    handle: Arc<Handle>,
}

#[derive(Deserialize)]
struct Model {
    ami_selector_terms: Vec<TermModel>,
    kubernetes_version: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TermModel {
    alias: Option<String>,
    id: Option<String>,
    name: Option<String>,
    owner: Option<String>,
    tags: Option<BTreeMap<String, String>>,
    ssm_parameter: Option<String>,
}

#[derive(Serialize)]
struct Found {
    id: String,
    name: String,
    architecture: &'static str,
    variant: String,
    created_at: Option<String>,
    deprecated: bool,
}

impl Amis {
    /// Makes the kind on a handle.
    pub fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: Arc::clone(handle) }
    }

    async fn find(&self, config: &Value) -> Result<Vec<Image>, Diagnostics> {
        let session = self.handle.session();
        let model: Model = tfplugin::from_value(config)?;
        let aws = session.aws_of(config).await?;
        let clients = aws.clients();
        let parameters = Parameters::default();
        let told = |error| Failure::from_aws("find the images", error).at("ami_selector_terms");
        match model.ami_selector_terms.iter().find_map(|term| term.alias.as_deref()) {
            Some(alias) => {
                let alias = Alias::parse(alias).map_err(told)?;
                let version = match model.kubernetes_version {
                    Some(version) => version,
                    None => session.cluster_of(config, &name_of(&session, config)?).await?.version.clone(),
                };
                Ok(images::by_alias(clients, &parameters, &alias, &version).await.map_err(told)?)
            }
            None => {
                let terms: Vec<Term> = model.ami_selector_terms.into_iter().map(TermModel::into_term).collect();
                Ok(images::find(clients, &parameters, &terms).await.map_err(told)?)
            }
        }
    }
}

impl TermModel {
    fn into_term(self) -> Term {
        let tags = self.tags.unwrap_or_default();
        Term { id: self.id, name: self.name, owner: self.owner, tags, ssm_parameter: self.ssm_parameter }
    }
}

#[async_trait]
impl DataSource for Amis {
    fn type_name(&self) -> &'static str {
        "karp_amis"
    }

    fn schema(&self) -> Schema {
        let text = |what: &str| Attribute::string().computed().describe(what);
        let optional = |what: &str| Attribute::string().optional().describe(what);
        Schema::new(
            "The images that a node class with these terms would run now, the newest of each kind of node. Pin what it finds to decide \
             yourself when nodes get a new image.",
        )
        .attribute("ami_selector_terms", ami_selector_terms())
        .attribute(
            "kubernetes_version",
            optional("The version that an alias is for, such as `1.36`; the cluster's when left out."),
        )
        .attribute("name", optional("The EKS cluster whose version counts; the provider block's `cluster_name` when left out."))
        .attribute("region", region_attribute())
        .attribute("ids", Attribute::list(Type::String).computed().describe("The images' ids."))
        .attribute(
            "amis",
            Attribute::nested_list([
                ("id", text("The image's id.")),
                ("name", text("Its name.")),
                ("architecture", text("`amd64` or `arm64`.")),
                ("variant", text("What it has drivers for: `standard`, `nvidia`, `neuron`, a Windows build, or `any`.")),
                ("created_at", text("When it was made.")),
                ("deprecated", Attribute::bool().computed().describe("Whether its owner has retired it.")),
            ])
            .computed()
            .describe("The images."),
        )
    }

    fn validate(&self, config: &Value) -> Diagnostics {
        let terms = config.get("ami_selector_terms");
        let aliases = terms.as_list().iter().filter(|term| !term.get("alias").is_null()).count();
        if aliases > 0 && terms.as_list().len() > 1 {
            let detail = "A term with an alias must be the only one.";
            return Diagnostic::error("Invalid terms", detail).at("ami_selector_terms").into();
        }
        Diagnostics::new()
    }

    async fn read(&self, ctx: &Context, config: Value) -> Result<Value, Diagnostics> {
        let found = ctx.run(self.find(&config)).await??;
        let ids: Vec<&str> = found.iter().map(|image| image.id.as_str()).collect();
        let ids = tfplugin::to_value(&ids)?;
        let amis: Vec<Found> = found.iter().map(describe).collect();
        Ok(config.with("ids", ids).with("amis", tfplugin::to_value(&amis)?))
    }
}

fn describe(image: &Image) -> Found {
    let variant = match image.variant {
        Variant::Standard => "standard".to_owned(),
        Variant::Nvidia => "nvidia".to_owned(),
        Variant::Neuron => "neuron".to_owned(),
        Variant::Windows(build) => build.to_owned(),
        Variant::Any => "any".to_owned(),
    };
    Found {
        id: image.id.clone(),
        name: image.name.clone(),
        architecture: image.arch.as_str(),
        variant,
        created_at: image.created_at.map(|at| at.to_string()),
        deprecated: image.deprecated,
    }
}
