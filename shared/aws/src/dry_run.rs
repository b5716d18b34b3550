//! Dry runs: whether EC2 would let the caller make what a launch makes. Nothing is made.

use crate::config::Clients;
use crate::error::Error;
use crate::launch_template::{self, BlockDevice, MetadataOptions, Placement, Spec};
use crate::selector::write_tags;
use aws_sdk_ec2::types as ec2;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::BTreeMap;

const CREATE_FLEET: &str = "ec2:CreateFleet";
const CREATE_LAUNCH_TEMPLATE: &str = "ec2:CreateLaunchTemplate";
const RUN_INSTANCES: &str = "ec2:RunInstances";
/// EC2's answer to a dry run of a call that it would carry out.
const WOULD_SUCCEED: &str = "DryRunOperation";
/// Well-formed names of things that need not be there: EC2 checks rights first.
const NO_TEMPLATE: &str = "lt-1234567890abcdef0";
const NO_SUBNET: &str = "subnet-1234567890abcdef0";

/// Asks whether the caller may create a fleet whose instances carry `tags`.
///
/// # Errors
/// [`Error::NotAuthorized`] when it may not, and any other failure of the call.
pub async fn create_fleet(clients: &Clients, tags: &BTreeMap<String, String>) -> Result<(), Error> {
    let template =
        ec2::FleetLaunchTemplateSpecificationRequest::builder().launch_template_id(NO_TEMPLATE).version("1").build();
    let place = ec2::FleetLaunchTemplateOverridesRequest::builder()
        .instance_type(ec2::InstanceType::T3Micro)
        .subnet_id(NO_SUBNET)
        .build();
    let config = ec2::FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(template)
        .overrides(place)
        .build();
    let capacity = ec2::TargetCapacitySpecificationRequest::builder()
        .total_target_capacity(1)
        .default_target_capacity_type(ec2::DefaultTargetCapacityType::OnDemand)
        .build();
    let call = clients.ec2_once().create_fleet().dry_run(true).r#type(ec2::FleetType::Instant);
    let call = call.launch_template_configs(config).target_capacity_specification(capacity);
    let kinds = [ec2::ResourceType::Instance, ec2::ResourceType::Volume, ec2::ResourceType::Fleet];
    let call = call.set_tag_specifications(Some(tagged(&kinds, tags)));
    outcome(clients.change(CREATE_FLEET, &clients.pace().create_fleet, || call.clone().send()).await.map(drop))
}

/// Asks whether the caller may make a launch template.
///
/// # Errors
/// [`Error::NotAuthorized`] when it may not, and any other failure of the call.
pub async fn create_launch_template(clients: &Clients, spec: &Spec) -> Result<(), Error> {
    let call = launch_template::call(clients, &spec.name(), spec).dry_run(true);
    outcome(clients.change(CREATE_LAUNCH_TEMPLATE, &clients.pace().mutate, || call.clone().send()).await.map(drop))
}

/// Asks whether the caller may run an instance of a template's content.
///
/// # Errors
/// [`Error::NotAuthorized`] when it may not; [`Error::InvalidRequest`] or [`Error::NotFound`] when a part of the content is not there or
/// does not go with another; any other failure of the call.
pub async fn run_instances(clients: &Clients, spec: &Spec, instance_type: &str, subnet: &str) -> Result<(), Error> {
    let interface = ec2::InstanceNetworkInterfaceSpecification::builder()
        .device_index(0)
        .subnet_id(subnet)
        .set_groups(Some(spec.security_group_ids.clone()))
        .set_associate_public_ip_address(spec.associate_public_ip)
        .set_primary_ipv6(spec.interface.ipv6.then_some(true))
        .set_ipv6_address_count(spec.interface.ipv6_addresses())
        .set_ipv4_prefix_count(spec.interface.prefixes)
        .set_connection_tracking_specification(spec.interface.tracking())
        .delete_on_termination(true)
        .build();
    let kinds = [ec2::ResourceType::Instance, ec2::ResourceType::Volume, ec2::ResourceType::NetworkInterface];
    let placement = |place: &Placement| {
        ec2::Placement::builder().group_id(&place.group).set_partition_number(place.partition).build()
    };
    let call = clients
        .ec2_once()
        .run_instances()
        .dry_run(true)
        .set_cpu_options(spec.nested_vms.map(cpu))
        .set_enclave_options(spec.enclaves.then(enclaves))
        .min_count(1)
        .max_count(1)
        .instance_type(ec2::InstanceType::from(instance_type))
        .image_id(&spec.image_id)
        .iam_instance_profile(ec2::IamInstanceProfileSpecification::builder().name(&spec.instance_profile).build())
        .user_data(STANDARD.encode(&spec.user_data))
        .network_interfaces(interface)
        .set_placement(spec.placement.as_ref().map(placement))
        .set_block_device_mappings(Some(spec.block_devices.iter().map(device).collect()))
        .metadata_options(metadata(&spec.metadata))
        .monitoring(ec2::RunInstancesMonitoringEnabled::builder().enabled(spec.detailed_monitoring).build())
        .set_tag_specifications(Some(tagged(&kinds, &spec.tags)));
    outcome(clients.change(RUN_INSTANCES, &clients.pace().run, || call.clone().send()).await.map(drop))
}

fn outcome(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if error.code() == Some(WOULD_SUCCEED) => Ok(()),
        answer => answer,
    }
}

fn tagged(kinds: &[ec2::ResourceType], tags: &BTreeMap<String, String>) -> Vec<ec2::TagSpecification> {
    let one = |kind: &ec2::ResourceType| {
        ec2::TagSpecification::builder().resource_type(kind.clone()).set_tags(Some(write_tags(tags))).build()
    };
    kinds.iter().map(one).collect()
}

fn cpu(nested_vms: bool) -> ec2::CpuOptionsRequest {
    ec2::CpuOptionsRequest::builder().nested_virtualization(launch_template::nested(nested_vms)).build()
}

fn enclaves() -> ec2::EnclaveOptionsRequest {
    ec2::EnclaveOptionsRequest::builder().enabled(true).build()
}

fn device(device: &BlockDevice) -> ec2::BlockDeviceMapping {
    let volume = ec2::EbsBlockDevice::builder()
        .set_volume_size(device.size_gib)
        .set_volume_type(device.volume_type.as_deref().map(ec2::VolumeType::from))
        .set_iops(device.iops)
        .set_throughput(device.throughput)
        .set_encrypted(device.encrypted)
        .set_kms_key_id(device.kms_key_id.clone())
        .set_snapshot_id(device.snapshot_id.clone())
        .set_volume_initialization_rate(device.initialization_rate)
        .delete_on_termination(device.delete_on_termination)
        .build();
    ec2::BlockDeviceMapping::builder().device_name(&device.device_name).ebs(volume).build()
}

fn metadata(options: &MetadataOptions) -> ec2::InstanceMetadataOptionsRequest {
    use ec2::{
        HttpTokensState as Tokens, InstanceMetadataEndpointState as Endpoint, InstanceMetadataProtocolState as Ipv6,
    };
    ec2::InstanceMetadataOptionsRequest::builder()
        .http_endpoint(if options.endpoint { Endpoint::Enabled } else { Endpoint::Disabled })
        .set_http_protocol_ipv6(options.ipv6.map(|on| if on { Ipv6::Enabled } else { Ipv6::Disabled }))
        .http_put_response_hop_limit(options.hop_limit)
        .http_tokens(if options.tokens_required { Tokens::Required } else { Tokens::Optional })
        .instance_metadata_tags(ec2::InstanceMetadataTagsState::Disabled)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_succeeds_by_an_error_of_its_own() {
        let answer = |code: &str| outcome(Err(Error::from_code(CREATE_FLEET, code, String::new())));
        assert!(answer(WOULD_SUCCEED).is_ok());
        assert!(matches!(answer("UnauthorizedOperation"), Err(Error::NotAuthorized { .. })));
        assert!(answer("InvalidParameterValue").is_err());
    }

    #[test]
    fn a_dry_run_asks_for_the_processor_that_the_template_names() {
        use ec2::NestedVirtualizationSpecification::{Disabled, Enabled};
        for (wanted, said) in [(true, Enabled), (false, Disabled)] {
            assert_eq!(cpu(wanted).nested_virtualization(), Some(&said));
        }
        assert_eq!(enclaves().enabled(), Some(true));
    }
}
