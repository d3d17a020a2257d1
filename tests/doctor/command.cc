/* The command: its outputs and its exit codes. */
#include <gmock/gmock.h>

#include "recorded.h"
#include "tools/command.h"

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

namespace {

Result doctor(const Recorded &r, std::vector<std::string> args = {}) {
  RecordingFile file(r.text());
  args.insert(args.begin(), {"doctor", "--from", file.path()});
  return tutti(args);
}

TEST(DoctorCommand, ExitCodeIsThatOfTheWorst) {
  EXPECT_EQ(doctor(Recorded("dgx")).code, 0);
  EXPECT_EQ(doctor(Recorded("container")).code, 0) << "notes are no fault";
  EXPECT_EQ(doctor(Recorded("dgx").answer("nvml.0000:da:00.0.ecc", "3")).code, 3);
  EXPECT_EQ(doctor(Recorded("dgx").answer("setting.IB_HCA", "x")).code, 1);
  EXPECT_EQ(tutti({"doctor", "--from", "/nowhere"}).code, 1);
  EXPECT_EQ(tutti({"doctor", "--json", "--fix"}).code, 2);
  EXPECT_EQ(tutti({"doctor", "now"}).code, 2);
}

TEST(DoctorCommand, TextShowsTheMatrixAndTheWorstFirst) {
  Result r = doctor(Recorded("dgx")
                        .answer("nvml.0000:da:00.0.ecc", "3")
                        .answer("nvml.0000:18:00.0.rows.failed", "1"));
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, StartsWith("Linux 6.8.0-60-generic x86_64, NVIDIA driver 580.159.03, CUDA"));
  EXPECT_THAT(r.out, HasSubstr("\n         mlx5_0   mlx5_1   mlx5_2"));
  EXPECT_THAT(r.out, HasSubstr("\nGPU2       NODE     NODE     PIX+     PIX+      SYS"));
  size_t failure = r.out.find("failure  0000:18:00.0: "),
         warning = r.out.find("warning  0000:da:00.0: ");
  ASSERT_NE(failure, std::string::npos);
  ASSERT_NE(warning, std::string::npos);
  EXPECT_LT(failure, warning);
  EXPECT_THAT(r.out, EndsWith("1 failure, 1 warning, 0 notes\n"));
}

TEST(DoctorCommand, FixPrintsAScriptThatTheShellUnderstands) {
  Result r = doctor(Recorded("dgx")
                        .file("sys/module/nvidia_peermem/version", "575.57.08")
                        .answer("limit.nofile", "256"),
                    {"--fix"});
  EXPECT_THAT(r.out, StartsWith("#!/bin/sh\n"));
  EXPECT_THAT(r.out, HasSubstr("\nsudo rmmod nvidia_peermem && sudo modprobe nvidia-peermem\n"));
  EXPECT_THAT(r.out, HasSubstr("\nulimit -n 65536\n"));
  RecordingFile script(r.out);
  EXPECT_EQ(Command({"sh", "-n", script.path()}).wait(), 0);
  r = doctor(Recorded("container").drop("dev/infiniband/*").silent("verbs.mlx5_*"), {"--fix"});
  EXPECT_THAT(r.out, HasSubstr("\n# by hand: docker run --device=/dev/infiniband"));
}

TEST(DoctorCommand, RecordsAndReads) {
  RecordingFile copy("");
  RecordingFile file(Recorded("switches").text());
  Result r = tutti({"doctor", "--from", file.path(), "--record", copy.path()});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(tutti({"doctor", "--from", copy.path()}).out,
            tutti({"doctor", "--from", file.path()}).out);
  r = tutti({"doctor", "--record", "/nowhere/at/all"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("cannot write /nowhere/at/all: No such file or directory"));
}

TEST(DoctorCommand, ThisMachineIsLookedAt) {
  Result r = tutti({"doctor"});
  EXPECT_THAT(r.code, testing::AnyOf(0, 1, 3)) << r.err;
  EXPECT_THAT(r.out, StartsWith("Linux "));
  EXPECT_EQ(r.err, "");
}

/* Checks what a schema of docs/ says, as far as it uses type, properties, required, items, enum and
 * const; more would need a package. */
const char kValidate[] = R"(
import json, sys
def check(schema, value, at):
    types = {"object": dict, "array": list, "string": str, "integer": int, "number": float,
             "boolean": bool}
    kind = schema.get("type")
    assert kind is None or type(value) is types[kind], f"{at} is no {kind}"
    assert "enum" not in schema or value in schema["enum"], f"{at}: {value}"
    assert "const" not in schema or value == schema["const"], f"{at}: {value}"
    for name in schema.get("required", []):
        assert name in value, f"{at} has no {name}"
    if kind == "object":
        for name in value:
            assert name in schema["properties"], f"{at}.{name} is not in the schema"
            check(schema["properties"][name], value[name], f"{at}.{name}")
    if kind == "array":
        for i, item in enumerate(value):
            check(schema["items"], item, f"{at}[{i}]")
known = {"$schema", "$id", "title", "description", "type", "properties", "required", "items", "enum", "const",
         "additionalProperties"}
def words(schema):
    assert set(schema) <= known, set(schema) - known
    for sub in list(schema.get("properties", {}).values()) + [schema[k] for k in schema if k == "items"]:
        words(sub)
schema = json.load(open(sys.argv[1]))
words(schema)
check(schema, json.load(open(sys.argv[2])), "the answer")
)";

TEST(DoctorCommand, JsonKeepsToItsSchema) {
  for (const char *machine : {"dgx", "switches", "cpu", "container", "soft"}) {
    Result r = doctor(Recorded(machine), {"--json"});
    RecordingFile answer(r.out);
    Command c({"python3", "-c", kValidate, TUTTI_SCHEMA, answer.path()});
    EXPECT_EQ(c.wait(), 0) << machine << ": " << c.err();
  }
  Recorded copied("roce");
  copied.answer("copy.0000:43:00.0.0000:83:00.0", "24.1 direct");
  copied.answer("copy.0000:83:00.0.0000:43:00.0", "wrong data");
  Result c = doctor(copied, {"--json"});
  RecordingFile copies(c.out);
  Command valid({"python3", "-c", kValidate, TUTTI_SCHEMA, copies.path()});
  EXPECT_EQ(valid.wait(), 0) << valid.err();
  EXPECT_THAT(c.out, HasSubstr(R"("to": "0000:83:00.0", "gigabytes": 24.1, "how": "direct")"));
  EXPECT_THAT(c.out, HasSubstr(R"("to": "0000:43:00.0", "gigabytes": 0.0, "how": "wrong data")"));
  Result r = doctor(Recorded("dgx").answer("setting.IB_HCA", "a\"b\\\t"), {"--json"});
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.out, HasSubstr("\"worst\": \"failure\""));
  EXPECT_THAT(r.out, HasSubstr("its value is 'a\\\"b\\\\"));
}

} // namespace
