// Package shapes declares what Karpenter hashes.
package shapes

import (
	"encoding/json"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names, order, tags and pointers of these fields are facts about Karpenter's API that decide its hashes
// (core 1.14.1 and 1.15.0; AWS 1.14.1 for v5 and 1.15.1 for v6). Fields that are not hashed are left out, except where a
// tag shows why.

// --- NodePool, hash v3 ---

type NodeClaimTemplate struct {
	ObjectMeta `json:"metadata"`
	Spec       NodeClaimTemplateSpec `json:"spec"`
}

type ObjectMeta struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type NodeClaimTemplateSpec struct {
	Taints                 []Taint             `json:"taints"`
	StartupTaints          []Taint             `json:"startupTaints"`
	Requirements           json.RawMessage     `json:"requirements" hash:"ignore"`
	NodeClassRef           *NodeClassReference `json:"nodeClassRef"`
	TerminationGracePeriod *metav1.Duration    `json:"terminationGracePeriod"`
	ExpireAfter            NillableDuration    `json:"expireAfter"`
}

type Taint struct {
	Key       string       `json:"key"`
	Value     string       `json:"value"`
	Effect    string       `json:"effect"`
	TimeAdded *metav1.Time `json:"timeAdded"`
}

type NodeClassReference struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Group string `json:"group"`
}

// --- EC2NodeClass, hash v5: the settings of the kubelet are a struct within the spec ---

type EC2NodeClassSpec struct {
	SubnetSelectorTerms              json.RawMessage         `json:"subnetSelectorTerms" hash:"ignore"`
	SecurityGroupSelectorTerms       json.RawMessage         `json:"securityGroupSelectorTerms" hash:"ignore"`
	CapacityReservationSelectorTerms json.RawMessage         `json:"capacityReservationSelectorTerms" hash:"ignore"`
	PlacementGroupSelector           *PlacementGroupSelector `json:"placementGroupSelector"`
	AssociatePublicIPAddress         *bool                   `json:"associatePublicIPAddress"`
	IPPrefixCount                    *int32                  `json:"ipPrefixCount" hash:"ignore"`
	AMISelectorTerms                 []AMISelectorTerm       `json:"amiSelectorTerms" hash:"ignore"`
	AMIFamily                        *string                 `json:"amiFamily" hash:"ignore"`
	UserData                         *string                 `json:"userData"`
	Role                             string                  `json:"role"`
	InstanceProfile                  *string                 `json:"instanceProfile"`
	Tags                             map[string]string       `json:"tags"`
	Kubelet                          *KubeletConfiguration   `json:"kubelet"`
	BlockDeviceMappings              []*BlockDeviceMapping   `json:"blockDeviceMappings"`
	InstanceStorePolicy              *string                 `json:"instanceStorePolicy"`
	NetworkInterfaces                []*NetworkInterface     `json:"networkInterfaces"`
	DetailedMonitoring               *bool                   `json:"detailedMonitoring"`
	MetadataOptions                  *MetadataOptions        `json:"metadataOptions"`
	ConnectionTracking               *ConnectionTracking     `json:"connectionTracking"`
	Context                          *string                 `json:"context"`
	CPUOptions                       *CPUOptions             `json:"cpuOptions"`
}

type AMISelectorTerm struct {
	Alias string `json:"alias"`
	ID    string `json:"id"`
}

type PlacementGroupSelector struct {
	Name *string `json:"name"`
	ID   *string `json:"id"`
}

type KubeletConfiguration struct {
	ClusterDNS                  []string                   `json:"clusterDNS"`
	MaxPods                     *int32                     `json:"maxPods"`
	PodsPerCore                 *int32                     `json:"podsPerCore"`
	SystemReserved              map[string]string          `json:"systemReserved"`
	KubeReserved                map[string]string          `json:"kubeReserved"`
	EvictionHard                map[string]string          `json:"evictionHard"`
	EvictionSoft                map[string]string          `json:"evictionSoft"`
	EvictionSoftGracePeriod     map[string]metav1.Duration `json:"evictionSoftGracePeriod"`
	EvictionMaxPodGracePeriod   *int32                     `json:"evictionMaxPodGracePeriod"`
	ImageGCHighThresholdPercent *int32                     `json:"imageGCHighThresholdPercent"`
	ImageGCLowThresholdPercent  *int32                     `json:"imageGCLowThresholdPercent"`
	CPUCFSQuota                 *bool                      `json:"cpuCFSQuota"`
}

type BlockDeviceMapping struct {
	DeviceName *string      `json:"deviceName"`
	EBS        *BlockDevice `json:"ebs"`
	RootVolume bool         `json:"rootVolume"`
}

type BlockDevice struct {
	DeleteOnTermination      *bool              `json:"deleteOnTermination"`
	Encrypted                *bool              `json:"encrypted"`
	IOPS                     *int64             `json:"iops"`
	KMSKeyID                 *string            `json:"kmsKeyID"`
	SnapshotID               *string            `json:"snapshotID"`
	Throughput               *int64             `json:"throughput"`
	VolumeInitializationRate *int32             `json:"volumeInitializationRate"`
	VolumeSize               *resource.Quantity `json:"volumeSize" hash:"string"`
	VolumeType               *string            `json:"volumeType"`
}

type NetworkInterface struct {
	NetworkCardIndex int32  `json:"networkCardIndex"`
	DeviceIndex      int32  `json:"deviceIndex"`
	InterfaceType    string `json:"interfaceType"`
}

type MetadataOptions struct {
	HTTPEndpoint            *string `json:"httpEndpoint"`
	HTTPProtocolIPv6        *string `json:"httpProtocolIPv6"`
	HTTPPutResponseHopLimit *int64  `json:"httpPutResponseHopLimit"`
	HTTPTokens              *string `json:"httpTokens"`
}

type EnclaveOptions struct {
	Enabled bool `json:"enabled"`
}

type ConnectionTracking struct {
	TCPEstablishedTimeout *int32 `json:"tcpEstablishedTimeout"`
	UDPStreamTimeout      *int32 `json:"udpStreamTimeout"`
	UDPTimeout            *int32 `json:"udpTimeout"`
}

type CPUOptions struct {
	NestedVirtualization *string `json:"nestedVirtualization"`
}

// Family tells the family of images that the spec or its alias names, as both versions hash it.
func Family(family *string, terms []AMISelectorTerm) string {
	if family != nil {
		return *family
	}
	for _, term := range terms {
		alias, _, _ := strings.Cut(term.Alias, "@")
		for _, known := range []string{"AL2", "AL2023", "Bottlerocket", "Windows2019", "Windows2022", "Windows2025"} {
			if strings.ToLower(known) == alias {
				return known
			}
		}
	}
	return "Custom"
}

// NillableDuration is a duration, or Never; Never is the zero value, which is not hashed.
type NillableDuration struct {
	*time.Duration

	Raw []byte `hash:"ignore"`
}

// UnmarshalJSON reads a duration or Never.
func (d *NillableDuration) UnmarshalJSON(text []byte) error {
	var word string
	if err := json.Unmarshal(text, &word); err != nil {
		return err
	}
	if word == "Never" {
		*d = NillableDuration{}
		return nil
	}
	length, err := time.ParseDuration(word)
	*d = NillableDuration{Duration: &length, Raw: text}
	return err
}
