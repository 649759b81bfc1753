/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CONVOY_EXPORT_H
#define CONVOY_EXPORT_H

/** Marks what libconvoy.so exports. All else in it is hidden. */
#define CONVOY_API __attribute__((visibility("default")))

#endif
