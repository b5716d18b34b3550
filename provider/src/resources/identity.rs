//! What names an object for ever, beside its state: the attributes that hashicorp/aws and hashicorp/kubernetes name theirs by.

use tfplugin::Value;
use tfplugin::schema::Identity;

use crate::session::{part_of_arn, region_of};

/// Where the versions of identities begin. OpenTofu keeps the identity that the other provider gave when a `moved` block hands a resource
/// over, and has it brought to karp's shape only where karp's version is the higher one; theirs are at 0 and 1 so far.
const FIRST: i64 = 100;
const NAME: &str = "The name.";
const CLUSTER: &str = "The EKS cluster.";

/// Starts an identity; `id` is the import id with the attributes in braces.
fn identity(id: &str) -> Identity {
    Identity::new(id).version(FIRST)
}

/// Gives the identity of an IAM object, which an account has by name.
pub fn of_account() -> Identity {
    account(identity("{name}").required("name", NAME))
}

/// Gives the identity of an object of an EKS cluster; `attribute` tells those of one cluster apart.
pub fn of_cluster(attribute: &str, description: &str) -> Identity {
    let identity = identity(&format!("{{cluster_name}}:{{{attribute}}}")).required("cluster_name", CLUSTER);
    of_region(identity.required(attribute, description))
}

/// Gives the identity of a pod identity association, whose import id has a comma.
pub fn of_association() -> Identity {
    let identity = identity("{cluster_name},{association_id}").required("cluster_name", CLUSTER);
    of_region(identity.required("association_id", "The association's id."))
}

/// Gives the identity of a queue.
pub fn of_queue() -> Identity {
    of_region(of_world("url", "The queue's URL."))
}

/// Gives the identity of what one attribute names in the whole world.
pub fn of_world(attribute: &str, description: &str) -> Identity {
    identity(&format!("{{{attribute}}}")).required(attribute, description)
}

/// Gives the identity of a cluster-scoped object of Kubernetes: which cluster it is in, the provider block says.
pub fn of_object() -> Identity {
    of_world("name", "The object's name.")
}

/// Gives the identity of the controller, which a namespace has one of.
pub fn of_controller() -> Identity {
    identity("{namespace}/karpenter").required("namespace", "The controller's namespace.")
}

fn account(identity: Identity) -> Identity {
    identity.optional("account_id", "The AWS account.", |state| Value::from(part_of_arn(state, 4)))
}

/// Adds account and region, which an import may give; the region then says where to look.
fn of_region(identity: Identity) -> Identity {
    let region = "The AWS region; the provider block's when left out.";
    account(identity).optional("region", region, |state| Value::from(region_of(state))).ending('@', "region")
}
