# SPDX-License-Identifier: Apache-2.0
"""Measurements on the user's own machine: `python -m convoy.bench --help`."""
