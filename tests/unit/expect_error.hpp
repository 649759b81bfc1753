// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "convoy/error.hpp"

namespace convoy::test {

/// The body must throw an Error of this status whose text has every one of `parts`.
template <typename Body>
void expect_error(Status status, std::initializer_list<const char*> parts, Body&& body) {
  try {
    body();
    ADD_FAILURE() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), status) << error.what();
    for (const char* part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "'" << part << "' is not in: " << error.what();
    }
  }
}

}  // namespace convoy::test
