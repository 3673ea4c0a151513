// cortado doctor: what this machine has, what of it is used, where things are found, and whether the operators are
// right.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <filesystem>

#include "cortado/base/human.h"
#include "cortado/base/isa.h"
#include "cortado/base/machine.h"
#include "cortado/base/table.h"
#include "cortado/bench/operators.h"
#include "cortado/cli/common.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/gated_scan/op.h"
#include "cortado/primitives/kernels.h"
#include "cortado/tokenizers/sentencepiece/bridge.h"

namespace cortado {
namespace {

// Facts by section ("machine", "torch", ...), and a line for each thing that is not as it should be.
struct Findings {
  Json facts;
  std::vector<std::string> problems;
};

// What `find` returns, or null and its error among the problems.
template <typename Find>
Json found(Findings& findings, Find&& find) {
  try {
    return find();
  } catch (const c10::Error& error) {
    findings.problems.push_back(error.what_without_backtrace());
  } catch (const std::exception& error) {
    findings.problems.push_back(error.what());
  }
  return nullptr;
}

void look_at_machine(Findings& findings) {
  const Machine machine = this_machine();
  findings.facts["machine"] = {{"cpu", machine.cpu},
                               {"cores", machine.cores},
                               {"threads", machine.threads},
                               {"memory_bytes", machine.memory},
                               {"memory_available_bytes", machine.available},
                               {"cache_bytes", {machine.caches[1], machine.caches[2], machine.caches[3]}}};
  const auto torch_threads = at::get_num_threads();
  if (machine.threads > 0 && torch_threads > machine.threads) {
    findings.problems.push_back(concat("[threads] torch computes with ", torch_threads, " threads, but only ",
                                       machine.threads, " processors may be used: set OMP_NUM_THREADS or --threads"));
  }
}

void look_at_kernels(Findings& findings) {
  const char* wish = std::getenv("CORTADO_ISA");
  Json& kernels = findings.facts["kernels"];
  kernels["CORTADO_ISA"] = wish ? Json(wish) : Json(nullptr);
  kernels["chosen"] = found(findings, [] { return selected_isa(); });
  if (kernels["chosen"].is_null()) return;
  kernels["available"] = available_isas();
  if (!kernels_enabled()) {
    findings.problems.push_back(concat("[kernels] the hand-written kernels are turned off (",
                                       wish ? "CORTADO_ISA=aten" : "nothing fits",
                                       "): everything runs through ATen, several times slower"));
  }
  Json& primitives = kernels["primitives"];
  for (const Primitive& primitive : kPrimitives) {
    primitives[std::string(primitive.name)] = primitive.kernel.empty() ? "ATen" : std::string(primitive.kernel);
  }
}

// A CPU that multiplies bfloat16 in one instruction.
bool has_bfloat16_products(const Machine& machine) {
  return machine.cpu_knows("avx512_bf16") || machine.cpu_knows("amx_bf16") || machine.cpu_knows("bf16");
}

void look_at_torch(Findings& findings) {
  findings.facts["torch"] = {{"version", TORCH_VERSION},
                             {"threads", at::get_num_threads()},
                             {"cpu_capability", at::get_cpu_capability()},
                             {"mkl", at::hasMKL()},
                             {"lapack", at::hasLAPACK()},
                             {"onednn", at::hasMKLDNN()},
                             {"openmp", at::hasOpenMP()},
                             {"cuda", at::hasCUDA()},
                             {"bfloat16_products", has_bfloat16_products(this_machine())}};
  if (!at::hasOpenMP()) findings.problems.push_back("[torch] this build has no OpenMP: it computes with one thread");
}

// One scan on the GPU, in bfloat16, against the definition in float64; the largest relative error of outputs and states.
double try_gpu(int device, bool channels) {
  const auto numbers = [] { return at::randn({1, 200, 2, 64}).to(at::kBFloat16); };
  const Tensor q = numbers(), k = numbers(), v = numbers();
  const Tensor g = channels ? at::rand({1, 200, 2, 64}).log() * 0.1 : at::rand({1, 200, 2}).log() * 0.1;
  const auto wide = [](const Tensor& x) { return x.to(at::kDouble); };
  const auto [o, last] = gated_scan_reference(wide(q), wide(k), wide(v), wide(g));
  const auto there = [device](const Tensor& x) {
    return x.to(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
  };
  const auto [found, found_last] = gated_scan(there(q), there(k), there(v), there(g));
  const auto error = [](const Tensor& x, const Tensor& y) {
    return ((x.to(at::kCPU).to(at::kDouble) - y).norm() / y.norm()).item<double>();
  };
  return std::max(error(found, o), error(found_last, last));
}

void look_at_gpus(Findings& findings) {
  Json& gpu = findings.facts["gpu"];
  const auto count = static_cast<int>(at::getNumGPUs());
  gpu["number"] = count;
  const std::string folder = cuda::cache_folder();
  gpu["CORTADO_CUDA_CACHE"] = folder.empty() ? "off" : folder;
  for (const auto& [name, kept] : cuda::kept_binaries()) gpu["binaries"][name] = kept;
  for (int i = 0; i < count; ++i) {
    Json& one = gpu[concat("gpu_", i)];
    one = found(findings, [i]() -> Json {
      const auto it = cuda::describe(i);
      return concat(it.name, ", ", it.architecture, ", ", it.multiprocessors, " multiprocessors, driver for CUDA ",
                    it.driver / 1000, ".", it.driver % 1000 / 10);
    });
    if (one.is_null()) continue;
    for (const bool channels : {false, true}) {
      const char* name = channels ? "a_gate_a_channel" : "a_gate_a_head";
      gpu[concat("gpu_", i, "_", name)] = found(findings, [&]() -> Json {
        const double error = try_gpu(i, channels);
        if (error < 1e-2) return error;
        throw Failure(concat("[gated_scan] on GPU ", i, " differs from its definition by ", error,
                             ": set CORTADO_CUDA=off and report it"));
      });
    }
  }
}

// The file that the code at `address` was loaded from.
std::string library_of(const void* address) {
  Dl_info info{};
  if (!::dladdr(address, &info) || !info.dli_fname) throw Failure("[libraries] a library can't be located");
  return info.dli_fname;
}

void look_for_files(Findings& findings) {
  Json& files = findings.facts["files"];
  const auto library = [&](const void* address) { return found(findings, [address] { return library_of(address); }); };
  files["program"] = found(findings, [] { return std::filesystem::read_symlink("/proc/self/exe").string(); });
  files["libcortado"] = library(reinterpret_cast<const void*>(&find_operator_cases));
  files["libcortado_ops"] = library(reinterpret_cast<const void*>(&selected_isa));
  files["libtorch"] = library(reinterpret_cast<const void*>(&at::get_cpu_capability));
  files["sentencepiece"] =
      found(findings, [] { return library_of(reinterpret_cast<const void*>(sentencepiece_trainer())); });
  const char* share = std::getenv("CORTADO_SHARE");
  files["CORTADO_SHARE"] = share ? Json(share) : Json(nullptr);
  files["configs"] = found(findings, [] { return shipped_file("configs"); });
  files["data"] = found(findings, [] { return shipped_file("data"); });
}

// Every operator against its definition, on little input: outputs and gradients.
void try_operators(Findings& findings) {
  Json& checks = findings.facts["checks"];
  for (const OperatorCase& which : operator_cases()) {
    checks[which.name] = found(findings, [&]() -> Json {
      const OperatorCheck check = check_operator(which, {.tokens = 150, .heads = 2, .size = 16}, at::kFloat);
      if (check.passed()) return check.error;
      throw Failure(concat("[", which.name, "] differs from its definition by ", check.error,
                           " (allowed: ", check.tolerance, "): set CORTADO_ISA=aten and report it"));
    });
  }
}

// --- Text. ---

std::string as_text(const std::string& key, const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text;
    for (const Json& one : value) text += (text.empty() ? "" : ", ") + as_text(key, one);
    return text;
  }
  if (key.ends_with("_bytes")) return human_bytes(value.get<double>());
  return value.is_number_float() ? concat(value.get<double>()) : value.dump();
}

std::string label_of(std::string key) {
  if (key.ends_with("_bytes")) key.resize(key.size() - 6);
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

void print_text(const Findings& findings) {
  Table table({"", "", ""});
  for (const auto& [section, facts] : findings.facts.items()) {
    if (section == "checks") continue;
    std::string first = section;
    for (const auto& [key, value] : facts.items()) {
      if (key == "primitives" || key == "binaries") continue;
      table.add_row({std::exchange(first, ""), key.starts_with("CORTADO") ? key : label_of(key), as_text(key, value)});
    }
  }
  const std::string text = table.text();
  std::cout << text.substr(text.find('\n', text.find('\n') + 1) + 1) << "\n";  // without the empty header
  Table kernels({"primitive", "computed by"});
  const Json primitives = findings.facts["kernels"].value("primitives", Json::object());
  for (const auto& [name, kernel] : primitives.items()) kernels.add_row({name, kernel.get<std::string>()});
  std::cout << kernels.text() << "\n";
  Table binaries({"kernels for GPUs", "binaries kept"});
  for (const auto& [name, kept] : findings.facts["gpu"]["binaries"].items()) binaries.add_row({name, kept.dump()});
  std::cout << binaries.text() << "\n";
  int64_t right = 0, tried = 0;
  for (const auto& [name, error] : findings.facts["checks"].items()) {
    ++tried;
    right += error.is_number();
  }
  std::cout << right << " of " << tried << " operators agree with their definitions\n";
}

void examine(bool json) {
  Findings findings;
  look_at_machine(findings);
  look_at_kernels(findings);
  look_at_torch(findings);
  look_for_files(findings);
  look_at_gpus(findings);
  if (!findings.facts["kernels"]["chosen"].is_null()) try_operators(findings);
  if (json) {
    findings.facts["problems"] = findings.problems;
    std::cout << findings.facts.dump(2) << std::endl;
  } else {
    print_text(findings);
  }
  if (findings.problems.empty()) {
    if (!json) std::cout << "all is well" << std::endl;
    return;
  }
  std::cout.flush();
  for (const std::string& problem : findings.problems) {
    std::cerr << "cortado: " << problem.substr(0, problem.find('\n')) << std::endl;
  }
  throw CLI::RuntimeError(1);
}

}  // namespace

void add_doctor_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Print what this machine has and uses, and try every operator against its definition");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print JSON");
  const auto common = add_common_options(*command);
  command->footer(
      "The exit code is 0 when all is well, else 1, with a line for each thing that is not.\n"
      "CORTADO_ISA=avx512|avx2|sse4|scalar|aten chooses the kernels' instruction set; aten turns them off.\n"
      "CORTADO_CUDA=off does so on GPUs; CORTADO_CUDA_CACHE=FOLDER|off is where their binaries are kept.\n"
      "Examples:\n  cortado doctor\n  CORTADO_ISA=avx2 cortado doctor --json");
  command->callback([json, common] {
    common->apply();
    examine(*json);
  });
}

}  // namespace cortado
