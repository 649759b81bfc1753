/* SPDX-License-Identifier: Apache-2.0 */
/* The C header must be C. */
#include <convoy/convoy.h>
#include <string.h>
#include <convoy/version.hpp>

int check_c_interface(void) {
  return strlen(convoy_version()) > 0 ? 0 : 1;
}
