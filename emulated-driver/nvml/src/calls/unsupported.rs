//! Functions that tools look up, and that no device supports: they check their device, and answer
//! so. Further arguments are not looked at.

use crate::code::Code;
use crate::entry::of_device;

/// Declares the functions.
macro_rules! unsupported {
    ($($name:ident)*) => {
        of_device! { $($name() |_| Err(Code::NOT_SUPPORTED);)* }
    };
}

unsupported! {
    nvmlDeviceClearAccountingPids nvmlDeviceClearCpuAffinity nvmlDeviceClearEccErrorCounts
    nvmlDeviceGetAPIRestriction nvmlDeviceGetAccountingBufferSize nvmlDeviceGetAccountingMode
    nvmlDeviceGetAccountingPids nvmlDeviceGetAccountingStats nvmlDeviceGetAutoBoostedClocksEnabled
    nvmlDeviceGetBoardPartNumber nvmlDeviceGetBridgeChipInfo nvmlDeviceGetConfComputeMemSizeInfo
    nvmlDeviceGetDefaultApplicationsClock nvmlDeviceGetDetailedEccErrors nvmlDeviceGetDriverModel
    nvmlDeviceGetDriverModel_v2 nvmlDeviceGetEncoderStats nvmlDeviceGetFBCStats nvmlDeviceGetGpuFabricInfo
    nvmlDeviceGetGpuFabricInfoV nvmlDeviceGetGpuOperationMode nvmlDeviceGetGridLicensableFeatures_v4
    nvmlDeviceGetInforomConfigurationChecksum nvmlDeviceGetInforomImageVersion nvmlDeviceGetInforomVersion
    nvmlDeviceGetMemoryErrorCounter nvmlDeviceGetNvLinkCapability nvmlDeviceGetNvLinkRemotePciInfo_v2
    nvmlDeviceGetNvLinkState nvmlDeviceGetNvLinkVersion nvmlDeviceGetRemappedRows nvmlDeviceGetRetiredPages
    nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetRetiredPages_v2 nvmlDeviceGetRunningProcessDetailList
    nvmlDeviceGetSamples nvmlDeviceGetSupportedClocksThrottleReasons nvmlDeviceGetSupportedGraphicsClocks
    nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetTopologyNearestGpus nvmlDeviceGetViolationStatus
    nvmlDeviceGetVirtualizationMode nvmlDeviceResetApplicationsClocks nvmlDeviceSetAPIRestriction
    nvmlDeviceSetAccountingMode nvmlDeviceSetApplicationsClocks nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetComputeMode nvmlDeviceSetCpuAffinity nvmlDeviceSetEccMode nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetGpuOperationMode nvmlDeviceSetMigMode nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit nvmlDeviceValidateInforom
}
