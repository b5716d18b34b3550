package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/mitchellh/hashstructure/v2"

	"karp.dev/sandbox/tools/oracle/shapes"
	"karp.dev/sandbox/tools/oracle/v6"
)

type object = map[string]any
type list = []any

// How many random combinations of the hand-written fields are added to each of them alone.
const combinations = 90

func hash(value any) string {
	sum, err := hashstructure.Hash(value, hashstructure.FormatV2, &hashstructure.HashOptions{
		SlicesAsSets:    true,
		IgnoreZeroValue: true,
		ZeroNil:         true,
	})
	if err != nil {
		panic(err)
	}
	return fmt.Sprint(sum)
}

// Reads an input through Go's own JSON, as Karpenter reads what the API server sends; a mistyped field is a mistake here.
func read(input, into any) {
	text, err := json.Marshal(input)
	if err != nil {
		panic(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		panic(fmt.Sprintf("%v in %s", err, text))
	}
}

type poolVector struct {
	Template object `json:"template"`
	Hash     string `json:"hash"`
}

func poolVectors() []any {
	taint := func(key, value, effect string) object {
		return object{"key": key, "value": value, "effect": effect}
	}
	metadata := []object{
		{"labels": object{"team": "a"}},
		{"labels": object{"team": "b"}},
		{"labels": object{"team": "a", "tier": "web"}},
		{"labels": object{"team": ""}},
		{"labels": object{}},
		{"annotations": object{"note": "x"}},
		{"annotations": object{}},
		{"labels": object{"a": "b"}, "annotations": object{"a": "b"}},
		{"labels": object{"a": "b", "c": "d"}, "annotations": object{}},
		{},
	}
	spec := map[string][]any{
		"taints": {
			list{}, list{taint("a", "b", "NoSchedule")}, list{object{"key": "a", "effect": "NoSchedule"}},
			list{taint("a", "b", "NoSchedule"), taint("c", "d", "NoExecute")},
			list{taint("c", "d", "NoExecute"), taint("a", "b", "NoSchedule")},
			list{taint("a", "b", "NoSchedule"), taint("a", "b", "NoSchedule")},
			list{object{"key": "a", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}},
		},
		"startupTaints": {list{}, list{taint("s", "", "NoSchedule")}, list{taint("a", "b", "PreferNoSchedule")}},
		"requirements":  {list{object{"key": "team", "operator": "Exists"}}},
		"nodeClassRef": {
			object{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "other"},
			object{"group": "example.com", "kind": "Other", "name": "default"},
		},
		"terminationGracePeriod": {"90s", "1h30m", "0s", "24h0m0s"},
		"expireAfter":            {"Never", "0s", "24h", "8760h", "90m", "1h1m1s"},
	}
	base := func() object {
		return object{
			"requirements": list{}, "expireAfter": "720h",
			"nodeClassRef": object{"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"},
		}
	}
	var vectors []any
	add := func(metadata, spec object) {
		template := object{"spec": spec}
		if metadata != nil {
			template["metadata"] = metadata
		}
		var shape shapes.NodeClaimTemplate
		read(template, &shape)
		vectors = append(vectors, poolVector{template, hash(shape)})
	}
	add(nil, base())
	for _, meta := range metadata {
		add(meta, base())
	}
	for _, field := range sorted(spec) {
		for _, value := range spec[field] {
			changed := base()
			changed[field] = value
			add(nil, changed)
		}
	}
	random := rand.New(rand.NewPCG(3, 1))
	for range combinations {
		add(metadata[random.IntN(len(metadata))], combine(random, base(), spec))
	}
	return vectors
}

// Sets about half of the fields, each to one of its values.
func combine(random *rand.Rand, into object, fields map[string][]any) object {
	for _, field := range sorted(fields) {
		if random.IntN(2) == 0 {
			into[field] = fields[field][random.IntN(len(fields[field]))]
		}
	}
	return into
}

type classVector struct {
	Spec     object `json:"spec"`
	CABundle string `json:"caBundle"`
	V5       string `json:"v5,omitempty"`
	V6       string `json:"v6"`
}

// Both versions hash a set of the spec, the family and the CA bundle; the sixth adds the kubelet's text.
func classHashes(spec object, caBundle string, typed bool) classVector {
	vector := classVector{Spec: spec, CABundle: caBundle}
	var six v6.EC2NodeClassSpec
	read(spec, &six)
	family := shapes.Family(six.AMIFamily, six.AMISelectorTerms)
	vector.V6 = hash([]any{six, family, caBundle, six.KubeletText()})
	if typed {
		var five shapes.EC2NodeClassSpec
		read(spec, &five)
		vector.V5 = hash([]any{five, family, caBundle})
	}
	return vector
}

func classVectors() []any {
	base := func() object {
		return object{
			"role": "node", "amiSelectorTerms": list{object{"alias": "al2023@latest"}},
			"subnetSelectorTerms": list{object{"id": "subnet-1"}}, "securityGroupSelectorTerms": list{object{"id": "sg-1"}},
			"metadataOptions": object{
				"httpEndpoint": "enabled", "httpProtocolIPv6": "disabled", "httpPutResponseHopLimit": 1, "httpTokens": "required",
			},
		}
	}
	var vectors []any
	add := func(spec object, caBundle string, typed bool) {
		vectors = append(vectors, classHashes(spec, caBundle, typed))
	}
	fields := classFields()
	add(base(), "", true)
	add(base(), "Q0E=", true)
	for _, field := range sorted(fields) {
		for _, value := range fields[field] {
			changed := base()
			changed[field] = value
			add(changed, "Q0E=", true)
		}
	}
	// Only the sixth version knows these.
	newer := map[string][]any{"enclaveOptions": {object{"enabled": true}, object{"enabled": false}}, "kubelet": openKubelets()}
	for _, field := range sorted(newer) {
		for _, value := range newer[field] {
			changed := base()
			changed[field] = value
			add(changed, "Q0E=", false)
		}
	}
	random := rand.New(rand.NewPCG(6, 5))
	for index := range combinations {
		changed := combine(random, base(), fields)
		if index%3 == 0 {
			add(combine(random, maps.Clone(changed), newer), "", false)
		} else {
			add(changed, "Q0E=", true)
		}
	}
	return vectors
}

func classFields() map[string][]any {
	disk := func(ebs object) list { return list{object{"deviceName": "/dev/xvda", "ebs": ebs}} }
	nic := func(card, device int, kind string) object {
		return object{"networkCardIndex": card, "deviceIndex": device, "interfaceType": kind}
	}
	return map[string][]any{
		"subnetSelectorTerms":              {list{object{"tags": object{"a": "b"}}}},
		"securityGroupSelectorTerms":       {list{object{"name": "x"}}},
		"capacityReservationSelectorTerms": {list{object{"id": "cr-1"}}},
		"placementGroupSelector":           {object{"name": "near"}, object{"id": "pg-1"}},
		"associatePublicIPAddress":         {true, false},
		"ipPrefixCount":                    {3},
		"amiSelectorTerms": {
			list{object{"alias": "al2@latest"}}, list{object{"alias": "bottlerocket@v1.20.0"}}, list{object{"id": "ami-1"}},
			list{object{"alias": "windows2019@latest"}}, list{object{"alias": "windows2022@latest"}},
			list{object{"alias": "windows2025@latest"}},
		},
		"amiFamily":       {"AL2", "AL2023", "Bottlerocket", "Custom", "Windows2019", "Windows2022", "Windows2025"},
		"userData":        {"#!/bin/sh\necho <&>", "", "größe"},
		"role":            {"other", ""},
		"instanceProfile": {"profile"},
		"tags":            {object{}, object{"a": "b"}, object{"a": "b", "c": ""}},
		"kubelet": {
			object{}, object{"clusterDNS": list{"10.0.0.10"}}, object{"clusterDNS": list{}},
			object{"clusterDNS": list{"10.0.0.10", "10.0.0.11"}},
			object{"maxPods": 110}, object{"maxPods": 0}, object{"podsPerCore": 8},
			object{"systemReserved": object{"cpu": "100m", "memory": "1Gi"}}, object{"systemReserved": object{}},
			object{"kubeReserved": object{"cpu": "0.1", "ephemeral-storage": "2Gi"}},
			object{"evictionHard": object{"memory.available": "5%", "pid.available": "3%"}},
			object{
				"evictionSoft":            object{"memory.available": "500Mi"},
				"evictionSoftGracePeriod": object{"memory.available": "1m30s"}, "evictionMaxPodGracePeriod": 60,
			},
			object{"imageGCHighThresholdPercent": 85, "imageGCLowThresholdPercent": 80, "cpuCFSQuota": false},
			object{"cpuCFSQuota": true, "maxPods": 58, "podsPerCore": 0, "kubeReserved": object{"memory": "500Mi"}},
		},
		"blockDeviceMappings": {
			list{}, list{object{}}, list{object{"deviceName": ""}},
			disk(object{"volumeSize": "20Gi", "volumeType": "gp3", "encrypted": true, "deleteOnTermination": true}),
			disk(object{"volumeSize": "1024Gi"}), disk(object{"volumeSize": "1Ti"}), disk(object{"volumeSize": "1000G"}),
			disk(object{"volumeSize": "64T", "iops": 3000, "throughput": 125, "kmsKeyID": "key", "encrypted": false}),
			disk(object{"snapshotID": "snap-1", "volumeInitializationRate": 100}),
			list{object{"rootVolume": true}, object{"deviceName": "/dev/xvdb", "rootVolume": false}},
		},
		"instanceStorePolicy": {"RAID0"},
		"networkInterfaces": {
			list{}, list{nic(0, 0, "interface")}, list{nic(0, 0, "interface"), nic(0, 1, "efa-only"), nic(1, 0, "efa-only")},
		},
		"detailedMonitoring": {true, false},
		"metadataOptions": {
			object{"httpEndpoint": "disabled", "httpProtocolIPv6": "enabled", "httpPutResponseHopLimit": 2, "httpTokens": "optional"},
		},
		"connectionTracking": {
			object{"tcpEstablishedTimeout": 60, "udpStreamTimeout": 180, "udpTimeout": 30}, object{"udpTimeout": 60},
		},
		"context":    {"reserved"},
		"cpuOptions": {object{"nestedVirtualization": "enabled"}, object{}},
	}
}

// Settings that the API server of 1.14 would prune or refuse. Numbers and texts show how Go writes JSON.
func openKubelets() []any {
	return []any{
		object{"maxPods": "min(vcpus * 8, 110)", "kubeReserved": object{"memory": "memory_mib / 50 > 100 && true"}},
		object{"registryPullQPS": 10, "featureGates": object{"B": true, "A": false}},
		object{"containerLogMaxSize": "<10Mi> & \"more\"\\", "cpuManagerPolicy": "static", "syncFrequency": "\u2028\u2029\b\f\n\t\x01\x7fü"},
		object{"memoryThrottlingFactor": 0.9, "a": 1e21, "b": 1.5e-7, "c": 0.000001, "d": 123456789.125, "e": -2.5e300, "f": 1e20 + 0.5},
		object{"systemReservedCgroup": nil, "shutdownGracePeriodByPodPriority": list{object{"priority": 1, "b": list{}, "a": object{}}}},
		object{"z": 1, "a": 2, "Z": 3},
	}
}
