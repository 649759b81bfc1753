// SPDX-License-Identifier: Apache-2.0
// JPEG in a build without libjpeg.
#include "convoy/error.hpp"
#include "io/jpeg.hpp"

namespace convoy::io {

bool can_read_jpeg() {
  return false;
}

HostTensor read_jpeg(ByteSource& source) {
  throw Error(Status::unsupported,
              source.name() +
                  ": this build reads no JPEG, for want of libjpeg (Debian: libjpeg-dev) where it "
                  "was built; supported: .npy, .png, .safetensors; ImageMagick makes a PNG: "
                  "convert PICTURE.jpg picture.png");
}

}  // namespace convoy::io
