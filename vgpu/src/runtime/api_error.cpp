// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "runtime/context.hpp"

namespace {

struct ErrorText {
  cudaError_t code;
  const char* name;
  const char* text;  ///< null: the name says enough
};

#define VGPU_ERROR(name, text) \
  { name, #name, text }

const ErrorText kErrors[] = {
    VGPU_ERROR(cudaSuccess, "no error"),
    VGPU_ERROR(cudaErrorInvalidValue, "invalid argument"),
    VGPU_ERROR(cudaErrorMemoryAllocation, "out of memory"),
    VGPU_ERROR(cudaErrorInitializationError, nullptr),
    VGPU_ERROR(cudaErrorCudartUnloading, nullptr),
    VGPU_ERROR(cudaErrorProfilerDisabled, nullptr),
    VGPU_ERROR(cudaErrorProfilerNotInitialized, nullptr),
    VGPU_ERROR(cudaErrorProfilerAlreadyStarted, nullptr),
    VGPU_ERROR(cudaErrorProfilerAlreadyStopped, nullptr),
    VGPU_ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    VGPU_ERROR(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    VGPU_ERROR(cudaErrorInvalidSymbol, "invalid device symbol"),
    VGPU_ERROR(cudaErrorInvalidHostPointer, nullptr),
    VGPU_ERROR(cudaErrorInvalidDevicePointer, nullptr),
    VGPU_ERROR(cudaErrorInvalidTexture, nullptr),
    VGPU_ERROR(cudaErrorInvalidTextureBinding, nullptr),
    VGPU_ERROR(cudaErrorInvalidChannelDescriptor, nullptr),
    VGPU_ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    VGPU_ERROR(cudaErrorAddressOfConstant, nullptr),
    VGPU_ERROR(cudaErrorTextureFetchFailed, nullptr),
    VGPU_ERROR(cudaErrorTextureNotBound, nullptr),
    VGPU_ERROR(cudaErrorSynchronizationError, nullptr),
    VGPU_ERROR(cudaErrorInvalidFilterSetting, nullptr),
    VGPU_ERROR(cudaErrorInvalidNormSetting, nullptr),
    VGPU_ERROR(cudaErrorMixedDeviceExecution, nullptr),
    VGPU_ERROR(cudaErrorNotYetImplemented, nullptr),
    VGPU_ERROR(cudaErrorMemoryValueTooLarge, nullptr),
    VGPU_ERROR(cudaErrorStubLibrary, nullptr),
    VGPU_ERROR(cudaErrorInsufficientDriver, nullptr),
    VGPU_ERROR(cudaErrorCallRequiresNewerDriver, nullptr),
    VGPU_ERROR(cudaErrorInvalidSurface, nullptr),
    VGPU_ERROR(cudaErrorDuplicateVariableName, nullptr),
    VGPU_ERROR(cudaErrorDuplicateTextureName, nullptr),
    VGPU_ERROR(cudaErrorDuplicateSurfaceName, nullptr),
    VGPU_ERROR(cudaErrorDevicesUnavailable, nullptr),
    VGPU_ERROR(cudaErrorIncompatibleDriverContext, nullptr),
    VGPU_ERROR(cudaErrorMissingConfiguration, "missing launch configuration"),
    VGPU_ERROR(cudaErrorPriorLaunchFailure, nullptr),
    VGPU_ERROR(cudaErrorLaunchMaxDepthExceeded, nullptr),
    VGPU_ERROR(cudaErrorLaunchFileScopedTex, nullptr),
    VGPU_ERROR(cudaErrorLaunchFileScopedSurf, nullptr),
    VGPU_ERROR(cudaErrorSyncDepthExceeded, nullptr),
    VGPU_ERROR(cudaErrorLaunchPendingCountExceeded, nullptr),
    VGPU_ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    VGPU_ERROR(cudaErrorNoDevice, nullptr),
    VGPU_ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    VGPU_ERROR(cudaErrorDeviceNotLicensed, nullptr),
    VGPU_ERROR(cudaErrorSoftwareValidityNotEstablished, nullptr),
    VGPU_ERROR(cudaErrorStartupFailure, nullptr),
    VGPU_ERROR(cudaErrorInvalidKernelImage, nullptr),
    VGPU_ERROR(cudaErrorDeviceUninitialized, nullptr),
    VGPU_ERROR(cudaErrorMapBufferObjectFailed, nullptr),
    VGPU_ERROR(cudaErrorUnmapBufferObjectFailed, nullptr),
    VGPU_ERROR(cudaErrorArrayIsMapped, nullptr),
    VGPU_ERROR(cudaErrorAlreadyMapped, nullptr),
    VGPU_ERROR(cudaErrorNoKernelImageForDevice, "no kernel image is available for this GPU"),
    VGPU_ERROR(cudaErrorAlreadyAcquired, nullptr),
    VGPU_ERROR(cudaErrorNotMapped, nullptr),
    VGPU_ERROR(cudaErrorNotMappedAsArray, nullptr),
    VGPU_ERROR(cudaErrorNotMappedAsPointer, nullptr),
    VGPU_ERROR(cudaErrorECCUncorrectable, nullptr),
    VGPU_ERROR(cudaErrorUnsupportedLimit, nullptr),
    VGPU_ERROR(cudaErrorDeviceAlreadyInUse, nullptr),
    VGPU_ERROR(cudaErrorPeerAccessUnsupported, nullptr),
    VGPU_ERROR(cudaErrorInvalidPtx, "invalid PTX"),
    VGPU_ERROR(cudaErrorInvalidGraphicsContext, nullptr),
    VGPU_ERROR(cudaErrorNvlinkUncorrectable, nullptr),
    VGPU_ERROR(cudaErrorJitCompilerNotFound, nullptr),
    VGPU_ERROR(cudaErrorUnsupportedPtxVersion, "unsupported PTX version"),
    VGPU_ERROR(cudaErrorJitCompilationDisabled, nullptr),
    VGPU_ERROR(cudaErrorUnsupportedExecAffinity, nullptr),
    VGPU_ERROR(cudaErrorUnsupportedDevSideSync, nullptr),
    VGPU_ERROR(cudaErrorContained, nullptr),
    VGPU_ERROR(cudaErrorInvalidSource, nullptr),
    VGPU_ERROR(cudaErrorFileNotFound, "file not found"),
    VGPU_ERROR(cudaErrorSharedObjectSymbolNotFound, nullptr),
    VGPU_ERROR(cudaErrorSharedObjectInitFailed, nullptr),
    VGPU_ERROR(cudaErrorOperatingSystem, nullptr),
    VGPU_ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    VGPU_ERROR(cudaErrorIllegalState, "operation not permitted in this state"),
    VGPU_ERROR(cudaErrorLossyQuery, nullptr),
    VGPU_ERROR(cudaErrorSymbolNotFound, "symbol not found"),
    VGPU_ERROR(cudaErrorNotReady, "not ready"),
    VGPU_ERROR(cudaErrorIllegalAddress, "illegal memory access"),
    VGPU_ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    VGPU_ERROR(cudaErrorLaunchTimeout, "the kernel did not end"),
    VGPU_ERROR(cudaErrorLaunchIncompatibleTexturing, nullptr),
    VGPU_ERROR(cudaErrorPeerAccessAlreadyEnabled, nullptr),
    VGPU_ERROR(cudaErrorPeerAccessNotEnabled, "peer access is not enabled"),
    VGPU_ERROR(cudaErrorSetOnActiveProcess, nullptr),
    VGPU_ERROR(cudaErrorContextIsDestroyed, nullptr),
    VGPU_ERROR(cudaErrorAssert, "device-side assert"),
    VGPU_ERROR(cudaErrorTooManyPeers, nullptr),
    VGPU_ERROR(cudaErrorHostMemoryAlreadyRegistered, "host memory is already registered"),
    VGPU_ERROR(cudaErrorHostMemoryNotRegistered, "host memory is not registered"),
    VGPU_ERROR(cudaErrorHardwareStackError, "hardware stack error"),
    VGPU_ERROR(cudaErrorIllegalInstruction, "illegal instruction"),
    VGPU_ERROR(cudaErrorMisalignedAddress, "misaligned address"),
    VGPU_ERROR(cudaErrorInvalidAddressSpace, "operation not supported in this address space"),
    VGPU_ERROR(cudaErrorInvalidPc, "invalid program counter"),
    VGPU_ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    VGPU_ERROR(cudaErrorCooperativeLaunchTooLarge, "too many blocks in a cooperative launch"),
    VGPU_ERROR(cudaErrorTensorMemoryLeak, "tensor memory was not freed"),
    VGPU_ERROR(cudaErrorNotPermitted, nullptr),
    VGPU_ERROR(cudaErrorNotSupported, "operation not supported by the virtual GPU"),
    VGPU_ERROR(cudaErrorSystemNotReady, nullptr),
    VGPU_ERROR(cudaErrorSystemDriverMismatch, nullptr),
    VGPU_ERROR(cudaErrorCompatNotSupportedOnDevice, nullptr),
    VGPU_ERROR(cudaErrorMpsConnectionFailed, nullptr),
    VGPU_ERROR(cudaErrorMpsRpcFailure, nullptr),
    VGPU_ERROR(cudaErrorMpsServerNotReady, nullptr),
    VGPU_ERROR(cudaErrorMpsMaxClientsReached, nullptr),
    VGPU_ERROR(cudaErrorMpsMaxConnectionsReached, nullptr),
    VGPU_ERROR(cudaErrorMpsClientTerminated, nullptr),
    VGPU_ERROR(cudaErrorCdpNotSupported, nullptr),
    VGPU_ERROR(cudaErrorCdpVersionMismatch, nullptr),
    VGPU_ERROR(cudaErrorStreamCaptureUnsupported,
               "operation not permitted while a stream captures"),
    VGPU_ERROR(cudaErrorStreamCaptureInvalidated,
               "the capture was invalidated by an earlier error"),
    VGPU_ERROR(cudaErrorStreamCaptureMerge, "operation would merge two captures"),
    VGPU_ERROR(cudaErrorStreamCaptureUnmatched, "the capture was not begun in this stream"),
    VGPU_ERROR(cudaErrorStreamCaptureUnjoined, "the capture has unjoined work"),
    VGPU_ERROR(cudaErrorStreamCaptureIsolation, "dependency on work outside the capture"),
    VGPU_ERROR(cudaErrorStreamCaptureImplicit,
               "operation would make the legacy stream depend on a capture"),
    VGPU_ERROR(cudaErrorCapturedEvent, "the event was recorded in a capture"),
    VGPU_ERROR(cudaErrorStreamCaptureWrongThread, nullptr),
    VGPU_ERROR(cudaErrorTimeout, nullptr),
    VGPU_ERROR(cudaErrorGraphExecUpdateFailure, "the graph update was not performed"),
    VGPU_ERROR(cudaErrorExternalDevice, nullptr),
    VGPU_ERROR(cudaErrorInvalidClusterSize, "invalid cluster size"),
    VGPU_ERROR(cudaErrorFunctionNotLoaded, nullptr),
    VGPU_ERROR(cudaErrorInvalidResourceType, nullptr),
    VGPU_ERROR(cudaErrorInvalidResourceConfiguration, nullptr),
    VGPU_ERROR(cudaErrorUnknown, "unknown error"),
};

#undef VGPU_ERROR

const ErrorText* find(cudaError_t code) {
  for (const ErrorText& error : kErrors) {
    if (error.code == code) return &error;
  }
  return nullptr;
}

}  // namespace

VGPU_API const char* cudaGetErrorName(cudaError_t code) {
  const ErrorText* error = find(code);
  return error ? error->name : "unrecognized error code";
}

VGPU_API const char* cudaGetErrorString(cudaError_t code) {
  const ErrorText* error = find(code);
  if (error == nullptr) return "unrecognized error code";
  return error->text ? error->text : error->name;
}
