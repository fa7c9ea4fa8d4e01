// Device and stream of fake tensors of device type cuda where there is no CUDA: nothing ever runs on them.
// torch 2.13 puts the same guard in place by itself in a CUDA build (FakeTensorMode.__enter__); torch 2.9 does not.
#include <c10/core/impl/DeviceGuardImplInterface.h>

static const c10::impl::DeviceGuardImplRegistrar registrar(
    c10::DeviceType::CUDA, new c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>());
