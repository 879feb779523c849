#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runner/backend.hpp"
#include "runner/launch.hpp"

/// How the ranks of a job meet, and what they say to each other besides collectives.
namespace stepcast {

/// A store of files in a folder that all ranks share, by Gloo's FileStore.
std::shared_ptr<Store> make_file_store(const std::string& folder, std::chrono::milliseconds timeout);

/// The key-value store of the job: in its folder where it has one, else c10d's TCPStore, which rank 0 serves
/// at master_addr:master_port. Returns when every rank has joined. \throws TimeoutError that names the ranks
/// that did not join.
std::shared_ptr<Store> make_store(const RankContext& ranks, std::chrono::milliseconds timeout);

/// A store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store(std::chrono::milliseconds timeout);

/// One rank that has joined its job.
struct RankSession {
  RankContext ranks;
  std::shared_ptr<Store> store;
  BackendConfig place;  ///< with which the backend was connected
  std::unique_ptr<Backend> backend;
  std::string binding;     ///< what bind_rank did
  std::string scheduling;  ///< what set_scheduling did
};

/// Joins the job and connects the backend of that name. \throws TimeoutError, UsageError (unknown backend),
/// RunError
RankSession join_job(const RankContext& ranks, const std::string& backend, const std::string& interface,
                     std::chrono::milliseconds timeout);

/// Collects one text per rank (JSON, a message) at rank 0, by rank; the other ranks receive an empty list.
std::vector<std::string> gather_text(Backend& backend, const std::string& text);

/// The texts of all ranks, by rank, at every rank.
std::vector<std::string> all_gather_text(Backend& backend, const std::string& text);

/// Everybody's numbers, rank after rank, at every rank. \pre all ranks give equally many
std::vector<double> all_gather_numbers(Backend& backend, std::vector<double> mine);

/// The largest value over all ranks, at every rank.
double max_over_ranks(Backend& backend, double value);

}  // namespace stepcast
