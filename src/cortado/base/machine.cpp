#include "cortado/base/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>

namespace cortado {
namespace {

// Returns the value of a line "model name\t: AMD EPYC" if its key is `key`, else "".
std::string value_of(const std::string& line, const std::string& key) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos || !line.starts_with(key)) return "";
  if (line.find_first_not_of(" \t", key.size()) != colon) return "";
  const size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? "" : line.substr(begin);
}

void read_cpuinfo(Machine& machine) {
  std::ifstream info("/proc/cpuinfo");
  std::set<std::string> cores;
  std::string package;
  for (std::string line; std::getline(info, line);) {
    if (const auto name = value_of(line, "model name"); !name.empty() && machine.cpu.empty()) machine.cpu = name;
    for (const char* key : {"flags", "Features"}) {  // x86 and ARM
      if (const auto flags = value_of(line, key); !flags.empty()) machine.flags = " " + flags + " ";
    }
    if (const auto id = value_of(line, "physical id"); !id.empty()) package = id;
    if (const auto id = value_of(line, "core id"); !id.empty()) cores.insert(package + "." + id);
  }
  machine.cores = static_cast<int64_t>(cores.size());
}

// Reads lines such as "MemTotal: 16384 kB" of /proc/meminfo; converts to bytes.
void read_memory(Machine& machine) {
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (const auto size = value_of(line, "MemTotal"); !size.empty()) machine.memory = 1024 * std::stoll(size);
    if (const auto size = value_of(line, "MemAvailable"); !size.empty()) machine.available = 1024 * std::stoll(size);
  }
  std::ifstream group("/sys/fs/cgroup/memory.max");  // contains a number or "max"
  if (int64_t limit = 0; group >> limit && limit < machine.memory) {
    machine.memory = limit;
    machine.available = std::min(machine.available, limit);
  }
}

void read_caches(Machine& machine) {
  for (int index = 0; index < 8; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/";
    std::ifstream level_file(folder + "level"), type_file(folder + "type"), size_file(folder + "size");
    int level = 0;
    std::string type;
    int64_t size = 0;
    char unit = 0;
    if (!(level_file >> level) || !(type_file >> type) || !(size_file >> size)) continue;
    size_file >> unit;
    if (level < 1 || level > 3 || type == "Instruction") continue;
    machine.caches[level] = size * (unit == 'M' ? 1 << 20 : unit == 'K' ? 1 << 10 : 1);
  }
}

}  // namespace

bool Machine::cpu_knows(const std::string& flag) const { return flags.find(" " + flag + " ") != std::string::npos; }

Machine this_machine() {
  Machine machine;
  read_cpuinfo(machine);
  read_memory(machine);
  read_caches(machine);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) == 0) machine.threads = CPU_COUNT(&usable);
  if (machine.cores == 0) machine.cores = machine.threads;
  if (machine.cpu.empty()) machine.cpu = "unknown";
  return machine;
}

}  // namespace cortado
