//! What would have to change for a pod that was refused.

use super::{Misfit, Refusal};
use crate::cluster::VolumeProblem;
use crate::counted;
use crate::resources;

impl Refusal {
    /// Says what would have to change for the pod to get past this reason.
    pub fn remedy(&self) -> String {
        match self {
            Refusal::NeverPlaced { feature } => format!("leave {feature} out of the pod"),
            Refusal::Volume { claim, problem } => match problem {
                VolumeProblem::NoClaim => format!("make persistent volume claim {claim}"),
                VolumeProblem::NoVolume { volume } => format!("make volume {volume}, or a new claim"),
                VolumeProblem::Lost | VolumeProblem::Deleting => format!("make claim {claim} again"),
                VolumeProblem::NoClassName => format!("set spec.storageClassName of claim {claim}"),
                VolumeProblem::NoClass { class } => format!("make storage class {class}"),
                VolumeProblem::UnboundImmediate { class } => {
                    format!("wait for the volume, or set volumeBindingMode: WaitForFirstConsumer in class {class}")
                }
                VolumeProblem::NoCommonPlace => "use volumes of one zone".to_owned(),
                VolumeProblem::NotItsOwn => format!("delete claim {claim}, or rename the pod or its volume"),
                VolumeProblem::PodElsewhere { .. } => {
                    format!(
                        "let the pod's node selector and node affinity allow where the volume is, or use another claim than {claim}"
                    )
                }
                VolumeProblem::InUse { by } => {
                    format!("delete pod {by}, or use a claim that several pods may use (not ReadWriteOncePod)")
                }
            },
            Refusal::NoPools => "make a NodePool".to_owned(),
            Refusal::ForeignPools { .. } => {
                "make a NodePool whose nodeClassRef has the group karpenter.k8s.aws and the kind EC2NodeClass"
                    .to_owned()
            }
            Refusal::Pool { pool, misfit } => misfit.remedy(pool),
        }
    }
}

impl Misfit {
    fn remedy(&self, pool: &str) -> String {
        match self {
            Misfit::PoolNotReady | Misfit::PoolDeleting | Misfit::ClassNotReady { .. } | Misfit::StaticPool => {
                self.pools_remedy(pool)
            }
            Misfit::TooBig { .. } | Misfit::TooManyVolumes { .. } | Misfit::NoTypeHasAll => self.smaller(pool),
            Misfit::Taint { taint } => format!("tolerate {taint} in the pod, or take the taint off pool {pool}"),
            Misfit::NoInstanceType { wanted, .. } if wanted.is_empty() => {
                format!("change the requirements of pool {pool}: they leave nothing to launch")
            }
            Misfit::Requirement { .. } | Misfit::NoInstanceType { .. } => {
                format!("change the pod's node selector or node affinity, or the requirements of pool {pool}")
            }
            Misfit::Contradiction { key, .. } => {
                format!("leave one value of {key} in the pod's node selector and node affinity")
            }
            Misfit::Volume { claim, place, .. } => {
                format!("let pool {pool} have nodes in {place}, or use another claim than {claim}")
            }
            Misfit::NamedNode { .. } => "leave kubernetes.io/hostname and matchFields out of the pod's node selector or a term of its node affinity".to_owned(),
            Misfit::NoOffering { .. } => {
                format!("let the pod and pool {pool} have more zones or capacity types, or wait")
            }
            Misfit::NotOffered { wanted, .. } if wanted.is_reserved() => format!(
                "let pool {pool} have on-demand or spot, too, or let capacityReservationSelectorTerms of its EC2NodeClass find a reservation for these types"
            ),
            Misfit::NotOffered { offered, .. } => {
                format!("let the pod and pool {pool} be {offered}; to wait does not help")
            }
            Misfit::Limit { resource, .. } => format!("raise spec.limits.{resource} of pool {pool}"),
            Misfit::Topology { blocked, .. } => blocked.remedy(pool),
            Misfit::Daemon { daemon, .. } => {
                format!("leave daemon set {daemon} out of the anti-affinity, or keep it off the nodes of pool {pool}")
            }
            Misfit::HostPort { port } => format!("use another host port than {port}, or none"),
            Misfit::MinValues { key, possible, limited, .. } => {
                let lower = match possible {
                    0 => format!("take minValues of {key} off pool {pool}"),
                    possible => format!("lower minValues of {key} in pool {pool} to {possible}"),
                };
                match limited {
                    true => format!("raise spec.limits of pool {pool}, or {lower}"),
                    false => format!("{lower}, or let the pod have more types"),
                }
            }
        }
    }

    /// What to do about a pool that grows for no pod.
    fn pools_remedy(&self, pool: &str) -> String {
        match self {
            Misfit::PoolDeleting => {
                format!("let another pool have the pod, or make NodePool {pool} again once it is gone")
            }
            Misfit::ClassNotReady { class } => format!("make EC2NodeClass {class}, or see its conditions"),
            Misfit::StaticPool => format!("remove spec.replicas of pool {pool}, or use another pool"),
            _ => format!("see the conditions of NodePool {pool}"),
        }
    }

    /// What to do about a pod that is larger than any node of a pool.
    fn smaller(&self, pool: &str) -> String {
        let class = format!("the EC2NodeClass of pool {pool}");
        match self {
            Misfit::TooBig { resource, .. } if resource == resources::PODS => {
                format!(
                    "raise spec.kubelet.maxPods of {class}, keep daemon sets off its nodes, or let it have larger types"
                )
            }
            Misfit::TooBig { resource, largest, .. } if resource == resources::EPHEMERAL_STORAGE => format!(
                "ask for at most {largest} of {resource}, or raise ebs.volumeSize in spec.blockDeviceMappings of {class}"
            ),
            Misfit::TooBig { resource, largest, .. } if largest.is_zero() => {
                format!("let pool {pool} have types with {resource}")
            }
            Misfit::TooBig { resource, largest, .. } => {
                format!("ask for at most {largest} of {resource}, or let pool {pool} have larger types")
            }
            Misfit::TooManyVolumes { most, .. } => {
                let at_most = counted(*most as usize, "volume");
                format!("give the pod at most {at_most}, or let pool {pool} have types that attach more")
            }
            _ => format!("ask for less of one resource, or let pool {pool} have larger types"),
        }
    }
}
