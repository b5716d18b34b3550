//! `quantity` and `max_pods`: the numbers of Kubernetes and of EC2's network interfaces.

use karp_domain::catalogue::overhead::max_pods;
use karp_domain::catalogue::{InstanceFacts, NodeSettings, builtin_type};
use karp_domain::quantity::Quantity;
use tfplugin::{Function, FunctionError, Number, Signature, Type, Value};

const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// Addresses of a /28 prefix, which takes the place of one address of an interface.
const PREFIX_ADDRESSES: u64 = 16;
/// kubelet's advice for nodes below [`MANY_CORES`] cores, and from there on.
const FEW_PODS: u64 = 110;
const MANY_PODS: u64 = 250;
const MANY_CORES: u32 = 30;

/// A Kubernetes quantity as a number.
pub struct QuantityOf;

impl Function for QuantityOf {
    fn name(&self) -> &'static str {
        "quantity"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::Number, "Gives a Kubernetes quantity as a number: cores, bytes or pieces.").parameter(
            "text",
            Type::String,
            "The quantity, such as `1500m`, `4Gi` or `1e3`.",
        )
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let quantity: Quantity =
            super::text(arguments, 0).parse().map_err(|error| FunctionError::new(format!("{error}")).argument(0))?;
        let text = decimal(quantity.nanos());
        let number = Number::parse(&text).unwrap_or(Number::Text(text));
        Ok(Value::Number(number))
    }
}

/// Writes billionths as an exact decimal.
fn decimal(nanos: i128) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (whole, rest) = (nanos.abs() / NANOS_PER_UNIT, nanos.abs() % NANOS_PER_UNIT);
    if rest == 0 {
        return format!("{sign}{whole}");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{whole}.{}", fraction.trim_end_matches('0'))
}

/// How many pods a node of a type takes.
pub struct MaxPods;

impl Function for MaxPods {
    fn name(&self) -> &'static str {
        "max_pods"
    }

    fn signature(&self) -> Signature {
        Signature::new(Type::Number, "Gives how many pods a node of an instance type takes by its network interfaces.")
            .describe(
                "For the VPC CNI with one address for each pod, or with a /28 prefix in place of each address. From karp's built-in table \
                 of instance types.",
            )
            .parameter("instance_type", Type::String, "The type, such as `m7i.large`.")
            .nullable("prefix_delegation", Type::Bool, "`ENABLE_PREFIX_DELEGATION` of the VPC CNI; null is false.")
            .nullable("reserved_enis", Type::Number, "Interfaces that pods do not get, as with custom networking; null is 0.")
    }

    fn call(&self, arguments: &[Value]) -> Result<Value, FunctionError> {
        let name = super::text(arguments, 0);
        let unknown = || FunctionError::new(format!("karp does not know the instance type {name:?}.")).argument(0);
        let facts = builtin_type(name).ok_or_else(unknown)?;
        let reserved = arguments.get(2).unwrap_or(&Value::Null);
        let reserved_enis = match (reserved.is_null(), reserved.as_i64().and_then(|count| u32::try_from(count).ok())) {
            (true, _) => 0,
            (false, Some(count)) => count,
            (false, None) => return Err(FunctionError::new("It must be a whole number from 0 on.").argument(2)),
        };
        let prefixes = arguments.get(1).and_then(Value::as_bool).unwrap_or_default();
        let pods = if prefixes {
            pods_by_prefixes(facts, reserved_enis)
        } else {
            max_pods(facts, &NodeSettings { reserved_enis, ..NodeSettings::default() })
        };
        Ok(Value::from(i64::try_from(pods).unwrap_or(i64::MAX)))
    }
}

/// As Amazon's calculator does: all addresses of the prefixes, but no more than the kubelet is good for.
fn pods_by_prefixes(facts: &InstanceFacts, reserved_enis: u32) -> u64 {
    let enis = u64::from(facts.enis.saturating_sub(reserved_enis));
    let addresses = enis * u64::from(facts.ipv4_per_eni.saturating_sub(1)) * PREFIX_ADDRESSES + 2;
    addresses.min(if facts.vcpus < MANY_CORES { FEW_PODS } else { MANY_PODS })
}
