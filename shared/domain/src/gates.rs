//! The controller's feature gates.

/// Karpenter's gates, each with whether it is on where nothing is said.
pub const GATES: [(&str, bool); 6] = [
    ("SpotToSpotConsolidation", false),
    ("NodeRepair", false),
    ("ReservedCapacity", true),
    ("NodeOverlay", false),
    ("StaticCapacity", false),
    ("CapacityBuffer", false),
];
