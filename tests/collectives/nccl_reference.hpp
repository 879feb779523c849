#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "schedule/schedule.hpp"
#include "topologies/cluster.hpp"

/// Rows of tests/collectives/reference/nccl_tuning.csv.
namespace stepcast::nccl_reference {

inline const std::string kFolder = std::string(STEPCAST_SOURCE_DIR) + "/tests/collectives/reference/";

struct Row {
  std::string cluster;
  CollectiveKind kind = CollectiveKind::kAllReduce;
  Bytes message;
  std::string choice;  ///< `ring/LL`
  double time_s = 0.0;
};

/// A file next to the rows, or a shipped cluster.
inline Cluster cluster_named(const std::string& name) {
  const std::string beside = kFolder + name + ".yaml";
  return load_cluster(std::filesystem::exists(beside) ? beside : name);
}

inline std::vector<Row> rows() {
  std::ifstream file(kFolder + "nccl_tuning.csv");
  REQUIRE(file.good());
  std::vector<Row> result;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#") || line.starts_with("cluster,")) continue;
    std::istringstream cells(line);
    std::string cluster, kind, bytes, algorithm, protocol, time;
    for (std::string* cell : {&cluster, &kind, &bytes, &algorithm, &protocol, &time})
      std::getline(cells, *cell, ',');
    std::replace(cluster.begin(), cluster.end(), ';', ',');
    Row row{cluster, CollectiveKind::kAllReduce, Bytes(std::stod(bytes)), algorithm + "/" + protocol,
            std::stod(time) * 1e-6};
    for (const CollectiveKind each : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
      if (kind == to_text(each)) row.kind = each;
    result.push_back(row);
  }
  REQUIRE(result.size() == 75);
  return result;
}

}  // namespace stepcast::nccl_reference
