// Package v6 declares the EC2NodeClass spec as hash v6 sees it: the settings of the kubelet are an open map that is hashed
// beside the spec, by its JSON text.
package v6

import (
	"encoding/json"

	"karp.dev/sandbox/tools/oracle/shapes"
)

// EC2NodeClassSpec has the name that the hash begins with.
type EC2NodeClassSpec struct {
	SubnetSelectorTerms              json.RawMessage                `json:"subnetSelectorTerms" hash:"ignore"`
	SecurityGroupSelectorTerms       json.RawMessage                `json:"securityGroupSelectorTerms" hash:"ignore"`
	CapacityReservationSelectorTerms json.RawMessage                `json:"capacityReservationSelectorTerms" hash:"ignore"`
	PlacementGroupSelector           *shapes.PlacementGroupSelector `json:"placementGroupSelector"`
	AssociatePublicIPAddress         *bool                          `json:"associatePublicIPAddress"`
	IPPrefixCount                    *int32                         `json:"ipPrefixCount" hash:"ignore"`
	AMISelectorTerms                 []shapes.AMISelectorTerm       `json:"amiSelectorTerms" hash:"ignore"`
	AMIFamily                        *string                        `json:"amiFamily" hash:"ignore"`
	UserData                         *string                        `json:"userData"`
	Role                             string                         `json:"role"`
	InstanceProfile                  *string                        `json:"instanceProfile"`
	Tags                             map[string]string              `json:"tags"`
	Kubelet                          map[string]json.RawMessage     `json:"kubelet" hash:"ignore"`
	BlockDeviceMappings              []*shapes.BlockDeviceMapping   `json:"blockDeviceMappings"`
	InstanceStorePolicy              *string                        `json:"instanceStorePolicy"`
	NetworkInterfaces                []*shapes.NetworkInterface     `json:"networkInterfaces"`
	DetailedMonitoring               *bool                          `json:"detailedMonitoring"`
	MetadataOptions                  *shapes.MetadataOptions        `json:"metadataOptions"`
	EnclaveOptions                   *shapes.EnclaveOptions         `json:"enclaveOptions"`
	ConnectionTracking               *shapes.ConnectionTracking     `json:"connectionTracking"`
	Context                          *string                        `json:"context"`
	CPUOptions                       *shapes.CPUOptions             `json:"cpuOptions"`
}

// KubeletText is the kubelet's settings as they are hashed.
func (spec *EC2NodeClassSpec) KubeletText() string {
	if len(spec.Kubelet) == 0 {
		return "null"
	}
	text, err := json.Marshal(spec.Kubelet)
	if err != nil {
		panic(err)
	}
	return string(text)
}
