// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "exec/machine.hpp"

namespace vgpu::exec {

/// Runs clusters of the grid on this thread until none is left or the grid stops.
/// `progress` counts the turns, on all threads, in which some cluster of the grid did more than
/// poll.
void run_worker(Worker& worker, std::atomic<uint64_t>& progress);

/// Builds a cluster: CTAs, warps, register files with their constants.
std::unique_ptr<Cluster> make_cluster(Worker& worker, uint64_t number);

// ---- reports (report.cpp)
/// A fault, where it happened, and what the cluster's other warps were doing.
std::string fault_report(const Cluster& cluster, const Agent& agent, const std::string& text);
/// Who waits for what: every lane group with its line, barrier, phase, pending count, bytes.
std::string stuck_report(const Cluster& cluster, const std::string& headline);

}  // namespace vgpu::exec
