#include "sim/core/bench.hpp"

#include "sim/core/error.hpp"
#include "sim/core/load.hpp"

namespace stepcast {

void to_json(nlohmann::json& json, const BenchRow& row) {
  json = {{"collective", row.collective},
          {"message_bytes", row.message_bytes},
          {"time_s", row.time_s},
          {"cpu_s", row.cpu_s},
          {"wrong", row.wrong}};
  if (!row.algorithm.empty()) json["algorithm"] = row.algorithm;
}

void from_json(const nlohmann::json& json, BenchRow& row) {
  json.at("collective").get_to(row.collective);
  json.at("message_bytes").get_to(row.message_bytes);
  json.at("time_s").get_to(row.time_s);
  json.at("cpu_s").get_to(row.cpu_s);
  json.at("wrong").get_to(row.wrong);
  row.algorithm = json.value("algorithm", "");
}

double algbw_bytes_per_s(const BenchRow& row) {
  const double time = row.median_time_s();
  return time > 0.0 ? row.message_bytes / time : 0.0;
}

double bus_factor(const std::string& collective, int world_size) {
  const double n = world_size;
  if (collective == "all_reduce") return 2.0 * (n - 1.0) / n;
  if (collective == "broadcast" || collective == "send_recv" || collective.starts_with("copy_")) return 1.0;
  return (n - 1.0) / n;
}

void to_json(nlohmann::json& json, const Bench& bench) {
  json = {{"context", bench.context}, {"origin", bench.origin},         {"lineage", bench.lineage},
          {"backend", bench.backend}, {"world_size", bench.world_size}, {"rows", bench.rows}};
}

void from_json(const nlohmann::json& json, Bench& bench) {
  json.at("context").get_to(bench.context);
  json.at("origin").get_to(bench.origin);
  json.at("lineage").get_to(bench.lineage);
  json.at("backend").get_to(bench.backend);
  json.at("world_size").get_to(bench.world_size);
  json.at("rows").get_to(bench.rows);
}

Bench load_bench(const std::string& path) { return load_as<Bench>(path, "stepcast.bench/1"); }

}  // namespace stepcast
