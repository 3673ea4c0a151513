#include "cortado/tokenizers/jinja.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "cortado/base/error.h"
#include "cortado/base/json.h"
#include "cortado/base/utf8.h"

namespace cortado {
namespace {

// The first line keeps Python from importing files of the working directory.
constexpr const char* kScript = R"(
import sys; sys.path[:] = [place for place in sys.path if place]
import datetime, json, resource
try:
    import jinja2, jinja2.ext, jinja2.sandbox
except ImportError:
    sys.exit(3)
resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))

def refuse(message):
    raise jinja2.exceptions.TemplateError(message)

def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

asked = json.load(sys.stdin)
environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                           extensions=[jinja2.ext.loopcontrols])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = refuse
environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
texts = []
for probe in asked["probes"]:
    try:
        texts.append(environment.from_string(asked["template"]).render(tools=None, documents=None, **probe))
    except Exception:
        texts.append(None)
json.dump(texts, sys.stdout)
)";

constexpr int kNoLibrary = 3, kNotFound = 127;

// The Python of the environment that torch was installed into: PREFIX/bin/python3 for PREFIX/lib/.../torch/lib.
std::string python_of_torch() {
  Dl_info info{};
  if (!::dladdr(reinterpret_cast<const void*>(&at::globalContext), &info) || !info.dli_fname) return "";
  std::error_code ignored;
  for (auto place = std::filesystem::absolute(info.dli_fname, ignored).parent_path(); place.has_relative_path();
       place = place.parent_path()) {
    const auto python = place / "bin" / "python3";
    if (std::filesystem::exists(python, ignored)) return python.string();
  }
  return "";
}

std::vector<std::string> pythons() {
  if (const char* chosen = std::getenv("CORTADO_PYTHON")) return {chosen};
  std::vector<std::string> all{python_of_torch(), "python3"};
  std::erase(all, "");
  return all;
}

using File = std::unique_ptr<FILE, int (*)(FILE*)>;
File temporary_file() {
  File file(std::tmpfile(), &std::fclose);
  if (!file) throw Failure("[chat] no room for a temporary file");
  return file;
}

void to_begin(FILE* file) {
  if (std::fseek(file, 0, SEEK_SET) != 0) throw Failure("[chat] a temporary file cannot be read again");
}

// Runs `python -c kScript`, with its output in `output`. Returns the exit code.
int run_script(const std::string& python, FILE* input, FILE* output) {
  to_begin(input);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(input), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(output), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<std::string> words{python, "-c", kScript};
  char* arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t process = 0;
  const int error = ::posix_spawnp(&process, arguments[0], &actions, nullptr, arguments, ::environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return kNotFound;
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::string content_of(FILE* file) {
  to_begin(file);
  std::string text;
  char part[4096];
  for (size_t count; (count = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, count);
  return text;
}

std::string question(const std::string& chat_template, const std::vector<TemplateProbe>& probes,
                     const std::string& begin, const std::string& end) {
  Json asked = {{"template", chat_template}, {"probes", Json::array()}};
  for (const TemplateProbe& probe : probes) {
    Json messages = Json::array();
    for (const auto& [role, content] : probe.messages) messages.push_back({{"role", role}, {"content", content}});
    Json given = {{"messages", messages}, {"add_generation_prompt", probe.ask}};
    if (!begin.empty()) given["bos_token"] = begin;
    if (!end.empty()) given["eos_token"] = end;
    asked["probes"].push_back(given);
  }
  return asked.dump();
}

}  // namespace

RenderedProbes render_by_jinja(const std::string& chat_template, const std::vector<TemplateProbe>& probes,
                               const std::string& begin, const std::string& end) {
  RenderedProbes rendered;
  if (utf8_valid_prefix(chat_template) != chat_template.size()) {
    rendered.problem = "its chat template is not UTF-8 text";
    return rendered;
  }
  const std::string asked = question(chat_template, probes, begin, end);
  for (const std::string& python : pythons()) {
    const File input = temporary_file(), output = temporary_file();
    std::fwrite(asked.data(), 1, asked.size(), input.get());
    const int code = run_script(python, input.get(), output.get());
    if (code == kNoLibrary || code == kNotFound) continue;
    const Json texts = Json::parse(content_of(output.get()), nullptr, /*allow_exceptions=*/false);
    if (code != 0 || !texts.is_array() || texts.size() != probes.size()) {
      rendered.problem = "its chat template cannot be rendered";
      return rendered;
    }
    for (const Json& text : texts) {
      rendered.texts.push_back(text.is_string() ? std::optional(text.get<std::string>()) : std::nullopt);
    }
    return rendered;
  }
  rendered.problem = "its chat template cannot be checked without a Python that has jinja2 (CORTADO_PYTHON names one)";
  return rendered;
}

}  // namespace cortado
