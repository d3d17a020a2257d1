#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/settings.h"
#include "collectives/graph.h"
#include "sysfs_tree.h"
#include "topology/topology.h"

using testing::HasSubstr;
using testing::StartsWith;

namespace {

const std::vector<uint64_t> kHosts = {5, 5, 9, 5, 9};

std::string slurp(const std::filesystem::path &path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

void spill(const std::filesystem::path &path, const std::string &text) {
  std::ofstream(path, std::ios::binary) << text;
}

size_t entries(const std::filesystem::path &dir) {
  auto it = std::filesystem::directory_iterator(dir);
  return std::distance(begin(it), end(it));
}

/* Never NULL, which stands for a file. */
const char *bytesOf(const std::vector<char> &text) {
  return text.empty() ? "" : text.data();
}

tuttiResult_t parseTopology(const std::string &text) {
  tuttiTopology *t = nullptr;
  tuttiErrorClear();
  /* A copy of its exact size, so that a read past the end is found. */
  std::vector<char> exact(text.begin(), text.end());
  tuttiResult_t result = tuttiTopologyParseXml(bytesOf(exact), exact.size(), "t.xml", &t);
  EXPECT_EQ(result == tuttiSuccess, t != nullptr);
  for (int i = 0; t != nullptr && i < t->count; i++)
    EXPECT_NE(tuttiTopologyDistance(t, i, t->count - 1 - i), TUTTI_DISTANCE_COUNT);
  tuttiTopologyFree(t);
  return result;
}

tuttiResult_t parseGraph(const std::string &text) {
  tuttiGraph *g = nullptr;
  tuttiErrorClear();
  std::vector<char> exact(text.begin(), text.end());
  tuttiResult_t result =
      tuttiGraphParseXml(bytesOf(exact), exact.size(), "g.xml", kHosts.data(), kHosts.size(), &g);
  EXPECT_EQ(result == tuttiSuccess, g != nullptr);
  /* What is accepted can be used: this would not end on a circle. */
  for (int i = 0; g != nullptr && i < g->nchannels * g->nranks * g->nranks; i++) {
    tuttiSchedule s;
    int root = i % g->nranks, rank = i / g->nranks % g->nranks;
    tuttiGraphTree(g, i / g->nranks / g->nranks, root, rank, &s);
    EXPECT_EQ(s.parent < 0, rank == root);
  }
  tuttiGraphFree(g);
  return result;
}

void expectBadTopology(const std::string &text, const std::string &message) {
  EXPECT_EQ(parseTopology(text), tuttiInvalidArgument) << text.substr(0, 200);
  EXPECT_THAT(tuttiErrorText(), HasSubstr(message));
}

void expectBadGraph(const std::string &text, const std::string &message) {
  EXPECT_EQ(parseGraph(text), tuttiInvalidArgument) << text.substr(0, 200);
  EXPECT_THAT(tuttiErrorText(), HasSubstr(message));
}

std::string topologyText(const std::string &machine) {
  SysfsTree tree(machine);
  tuttiTopology *t = nullptr;
  EXPECT_EQ(tuttiTopologyDetect(tree.root().c_str(), &t), tuttiSuccess);
  TempDir dir;
  std::string path = (dir.path() / "t.xml").string();
  EXPECT_EQ(tuttiTopologyWriteXml(t, path.c_str(), "--dump"), tuttiSuccess);
  tuttiTopologyFree(t);
  return slurp(path);
}

std::string graphText(int channels) {
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphCreate(kHosts.data(), kHosts.size(), nullptr, channels, &g), tuttiSuccess);
  TempDir dir;
  std::string path = (dir.path() / "g.xml").string();
  EXPECT_EQ(tuttiGraphWriteXml(g, path.c_str(), "--graph-dump"), tuttiSuccess);
  tuttiGraphFree(g);
  return slurp(path);
}

void expectSameNode(const tuttiNode &a, const tuttiNode &b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.parent, b.parent);
  EXPECT_STREQ(a.name, b.name);
  EXPECT_EQ(a.busId, b.busId);
  EXPECT_EQ(a.class_, b.class_);
  EXPECT_EQ(a.vendor, b.vendor);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.numa, b.numa);
  EXPECT_EQ(a.linkGBs, b.linkGBs) << "to the bit";
  EXPECT_EQ(a.up, b.up);
  EXPECT_STREQ(a.driver, b.driver);
  EXPECT_STREQ(a.cpus, b.cpus);
}

TEST(TopologyXml, ComesBackTheSame) {
  TempDir dir;
  std::string path = (dir.path() / "t.xml").string();
  for (const char *machine : {"dgx", "two_sockets", "flat_vm", "no_pci_vm"}) {
    SysfsTree tree(machine);
    tuttiTopology *t = nullptr, *back = nullptr;
    ASSERT_EQ(tuttiTopologyDetect(tree.root().c_str(), &t), tuttiSuccess);
    snprintf(t->host, sizeof t->host, "<\"&'>");
    snprintf(t->nodes[t->count - 1].name, sizeof t->nodes[0].name, "a\"<b>&amp;'");
    ASSERT_EQ(tuttiTopologyWriteXml(t, path.c_str(), "--dump"), tuttiSuccess);
    ASSERT_EQ(tuttiTopologyParseXml(nullptr, 0, path.c_str(), &back), tuttiSuccess)
        << tuttiErrorText();
    EXPECT_STREQ(back->host, t->host);
    ASSERT_EQ(back->count, t->count);
    for (int i = 0; i < t->count; i++)
      expectSameNode(t->nodes[i], back->nodes[i]);
    tuttiTopologyFree(t);
    tuttiTopologyFree(back);
  }
  EXPECT_EQ(entries(dir.path()), 1u) << "no temporary file is left";
}

std::string inTopology(const std::string &inner) {
  return "<topology version=\"1\">\n" + inner + "</topology>";
}

TEST(TopologyXml, RefusesWhatIsWrong) {
  EXPECT_EQ(parseTopology(inTopology("<!-- a comment --><node kind='Nic' name='x'/>")),
            tuttiSuccess);
  expectBadTopology("", "t.xml:1: not well-formed XML: no element found");
  expectBadTopology("<topology version='1'>\n\n<node", "t.xml:3: not well-formed");
  expectBadTopology("<graph/>", "t.xml:1: the outermost element is not <topology>");
  expectBadTopology("<topology/>", "without version");
  expectBadTopology("<topology version='2'/>", "version=\"2\" is not within 1 to 1");
  expectBadTopology(inTopology("<cpu/>"), "t.xml:2: element <cpu> where <node> is expected");
  expectBadTopology(inTopology("<node name='x'/>"), "without kind");
  expectBadTopology(inTopology("<node kind='Nic'/>"), "without name");
  expectBadTopology(inTopology("<node kind='System' name='x'/>"), "\"System\" is no kind");
  expectBadTopology(inTopology("<node kind='Nic' name='x' color='red'/>"),
                    "unknown attribute \"color\"");
  expectBadTopology(inTopology("text"), "text between the elements");
  expectBadTopology(inTopology("<node kind='Nic' name='" + std::string(64, 'n') + "'/>"),
                    "name is 64 bytes long; at most 63");
  expectBadTopology(inTopology("<node kind='Nic' name='a&#10;b'/>"), "control character");
}

TEST(TopologyXml, ChecksNumbers) {
  auto with = [](const std::string &attribute) {
    return inTopology("<node kind='Nic' name='x' " + attribute + "/>");
  };
  EXPECT_EQ(parseTopology(with("numa='65535' link='1000000000' class='0xffffff'")), tuttiSuccess);
  expectBadTopology(with("numa='65536'"), "not within -1 to 65535");
  expectBadTopology(with("numa='-2'"), "not within");
  expectBadTopology(with("numa='99999999999999999999999'"), "not within");
  expectBadTopology(with("numa=''"), "is not a number");
  expectBadTopology(with("numa=' 1'"), "is not a number");
  expectBadTopology(with("numa='1x'"), "is not a number");
  expectBadTopology(with("class='0x'"), "is not a number");
  expectBadTopology(with("class='0x-1'"), "is not a number");
  expectBadTopology(with("up='2'"), "not within 0 to 1");
  expectBadTopology(with("link='nan'"), "is not a number");
  for (const char *bus : {"", "3b:00.0", "0000:3b:00.8", "0000:3b:20.0", "0000:3b:00.0 ",
                          "123456789:00:00.0", "0000:3b:00", "0000:3b:0.0", "0000-3b:00.0"})
    expectBadTopology(with("bus='" + std::string(bus) + "'"), "not of the form 0000:3b:00.0");
}

TEST(TopologyXml, RefusesHostileMarkup) {
  std::string laughs = "<!DOCTYPE lolz [<!ENTITY a 'ha'>";
  for (char c = 'b'; c <= 'z'; c++) {
    laughs += std::string("<!ENTITY ") + c + " '";
    for (int i = 0; i < 10; i++)
      laughs += std::string("&") + static_cast<char>(c - 1) + ";";
    laughs += "'>\n";
  }
  expectBadTopology(laughs + "]><topology version='1' host='&z;'/>", "document type");
  expectBadGraph(laughs + "]><graph/>", "document type");
  expectBadTopology("<!DOCTYPE t SYSTEM 'file:///etc/passwd'><topology version='1'/>",
                    "t.xml:1: a document type");
  expectBadTopology(inTopology("&undefined;"), "not well-formed");
  expectBadTopology(std::string("<topology version='1' host='a\0b'/>", 34), "not well-formed");
}

TEST(TopologyXml, HasLimits) {
  const std::string open = "<node kind='Switch' name='s'>", close = "</node>";
  auto nested = [&](int depth) {
    std::string text;
    for (int i = 0; i < depth; i++)
      text += open;
    for (int i = 0; i < depth; i++)
      text += close;
    return inTopology(text);
  };
  EXPECT_EQ(parseTopology(nested(63)), tuttiSuccess);
  expectBadTopology(nested(64), "more than 64 elements inside each other");
  expectBadTopology(nested(100000), "more than 64 elements inside each other");
  auto wide = [&](int count) {
    std::string text;
    for (int i = 0; i < count; i++)
      text += "<node kind='Nic' name='n'/>";
    return inTopology(text);
  };
  EXPECT_EQ(parseTopology(wide(65535)), tuttiSuccess);
  expectBadTopology(wide(65536), "more than 65536 nodes");
  expectBadTopology(inTopology(std::string(16 << 20, ' ')), "at most 16777216 are accepted");
}

TEST(TopologyXml, NamesTheFileThatCannotBeRead) {
  TempDir dir;
  tuttiTopology *t = nullptr;
  std::string path = (dir.path() / "none.xml").string();
  EXPECT_EQ(tuttiTopologyParseXml(nullptr, 0, path.c_str(), &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr(path + ": No such file"));
  EXPECT_EQ(tuttiTopologyParseXml(nullptr, 0, dir.path().c_str(), &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("is not a regular file"));
  EXPECT_EQ(tuttiTopologyParseXml(nullptr, 0, "/dev/zero", &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("/dev/zero is not a regular file"));
  spill(path, "<topology version='1'>\n<node/></topology>");
  EXPECT_EQ(tuttiTopologyParseXml(nullptr, 0, path.c_str(), &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr(path + ":2: node without kind"));
  ASSERT_EQ(truncate(path.c_str(), (16 << 20) + 1), 0);
  EXPECT_EQ(tuttiTopologyParseXml(nullptr, 0, path.c_str(), &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("16777217 bytes"));
  EXPECT_EQ(t, nullptr);
}

/* Every way to write a file. To open a FIFO would wait for a reader. */
TEST(Save, OnlyWhereARegularFileIsOrNone) {
  TempDir dir;
  std::string fifo = (dir.path() / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  tuttiGraph *g = nullptr;
  tuttiTopology *t = nullptr;
  ASSERT_EQ(tuttiGraphCreate(kHosts.data(), kHosts.size(), nullptr, 8, &g), tuttiSuccess);
  ASSERT_EQ(tuttiTopologyDetect("/sys", &t), tuttiSuccess);
  for (const std::string &path : {fifo, std::string("/dev/null"), dir.path().string()}) {
    EXPECT_EQ(tuttiTopologyWriteXml(t, path.c_str(), "TUTTI_A"), tuttiInvalidArgument);
    EXPECT_THAT(tuttiErrorText(), HasSubstr("the topology to " + path +
                                            ": it is not a regular file; give another path "
                                            "(TUTTI_A)"));
    EXPECT_EQ(tuttiGraphWriteXml(g, path.c_str(), "TUTTI_B"), tuttiInvalidArgument);
    EXPECT_EQ(tuttiGraphWriteSvg(g, path.c_str(), "--svg"), tuttiInvalidArgument);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(entries(dir.path()), 1u) << "no temporary file is left";
  tuttiGraphFree(g);
  tuttiTopologyFree(t);
}

TEST(Host, ErrorsNameTheVariableOfTheFile) {
  TempDir dir;
  std::string path = (dir.path() / "secret.xml").string();
  spill(path, "<passwords><root/></passwords>");
  const tuttiTopology *t = nullptr;
  setenv("TUTTI_TOPO_FILE", path.c_str(), 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_EQ(tuttiTopologyHost(true, &t), tuttiInvalidArgument);
  EXPECT_EQ(tuttiErrorText(),
            "TUTTI_TOPO_FILE=" + path + ":1: the outermost element is not <topology>");
  unsetenv("TUTTI_TOPO_FILE");
  setenv("TUTTI_TOPO_DUMP_FILE", "/dev/null", 1);
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
  EXPECT_EQ(tuttiTopologyHost(true, &t), tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("(TUTTI_TOPO_DUMP_FILE)"));
  unsetenv("TUTTI_TOPO_DUMP_FILE");
  EXPECT_EQ(tuttiSettingsLoad(), tuttiSuccess);
}

TEST(Save, AFullDiskLeavesWhatWasThere) {
  tuttiGraph *g = nullptr;
  ASSERT_EQ(tuttiGraphCreate(kHosts.data(), kHosts.size(), nullptr, 8, &g), tuttiSuccess);
  EXPECT_EQ(tuttiGraphWriteXml(g, "/none/g.xml", "TUTTI_X"), tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("the graph to /none/g.xml: No such file or directory "
                                          "(TUTTI_X)"));

  TempDir dir;
  std::string path = (dir.path() / "g.xml").string();
  spill(path, "old");
  struct rlimit before, small = {16, 0};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  small.rlim_max = before.rlim_max;
  auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  tuttiResult_t result = tuttiGraphWriteXml(g, path.c_str(), "--graph-dump");
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(result, tuttiSystemError);
  EXPECT_THAT(tuttiErrorText(), HasSubstr(path + ": File too large (--graph-dump)"));
  EXPECT_EQ(slurp(path), "old");
  EXPECT_EQ(entries(dir.path()), 1u) << "no temporary file is left";

  EXPECT_EQ(tuttiGraphWriteXml(g, path.c_str(), "--graph-dump"), tuttiSuccess);
  EXPECT_THAT(slurp(path), StartsWith("<?xml"));
  tuttiGraphFree(g);
}

TEST(GraphXml, ComesBackTheSame) {
  TempDir dir;
  std::string path = (dir.path() / "g.xml").string();
  for (int channels : {1, 2, 32}) {
    tuttiGraph *g = nullptr, *back = nullptr;
    ASSERT_EQ(tuttiGraphCreate(kHosts.data(), kHosts.size(), nullptr, channels, &g), tuttiSuccess);
    ASSERT_EQ(tuttiGraphWriteXml(g, path.c_str(), "--graph-dump"), tuttiSuccess);
    ASSERT_EQ(tuttiGraphParseXml(nullptr, 0, path.c_str(), kHosts.data(), kHosts.size(), &back),
              tuttiSuccess)
        << tuttiErrorText();
    ASSERT_EQ(back->nranks, g->nranks);
    ASSERT_EQ(back->nchannels, g->nchannels);
    EXPECT_EQ(back->nhosts, g->nhosts);
    size_t all = static_cast<size_t>(channels) * kHosts.size() * sizeof(int32_t);
    EXPECT_EQ(memcmp(back->host, g->host, kHosts.size() * sizeof(int32_t)), 0);
    EXPECT_EQ(memcmp(back->ring, g->ring, all), 0);
    EXPECT_EQ(memcmp(back->position, g->position, all), 0);
    EXPECT_EQ(memcmp(back->parent, g->parent, all), 0);
    EXPECT_EQ(memcmp(back->depth, g->depth, channels * sizeof(int32_t)), 0);
    tuttiGraphFree(g);
    tuttiGraphFree(back);
  }
}

std::string graphWith(const std::string &channel, const std::string &hosts = "0 0 1 0 1") {
  return "<graph version='1' channels='1' hosts='" + hosts + "'>\n<channel>\n" + channel +
         "\n</channel></graph>";
}
const char kRing[] = "<ring ranks='0 1 3 2 4'/>", kTree[] = "<tree parents='2 0 -1 0 2'/>";

TEST(GraphXml, RefusesWhatIsNoGraph) {
  EXPECT_EQ(parseGraph(graphWith(std::string(kRing) + kTree)), tuttiSuccess) << tuttiErrorText();
  EXPECT_EQ(parseGraph(graphWith(std::string(kTree) + kRing)), tuttiSuccess) << tuttiErrorText();
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 3'/>"), "g.xml:3: rank 3 is in the ring of "
                                                         "channel 0 twice");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2'/>"), "ranks has 4 entries for 5 ranks");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 4 0 1'/>"), "ranks has 7 entries for 5 ranks");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 5'/>"), "5 is not within 0 to 4");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 -1'/>"), "-1 is not within 0 to 4");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 4294967296'/>"), "is not within 0 to 4");
  expectBadGraph(graphWith("<ring ranks='0 1 3 2 4,'/>"), "is not a number");
  expectBadGraph(graphWith("<ring/>"), "\"ranks\" is missing");
  expectBadGraph(graphWith("<tree parents='1 0 -1 0 2'/>"), "go round in a circle");
  expectBadGraph(graphWith("<tree parents='2 1 -1 0 2'/>"), "go round in a circle");
  expectBadGraph(graphWith("<tree parents='1 2 3 4 0'/>"), "go round in a circle");
  expectBadGraph(graphWith("<tree parents='-1 0 -1 0 2'/>"), "ranks 0 and 2 are both roots");
  expectBadGraph(graphWith("<tree parents='2 0 -2 0 2'/>"), "-2 is not within -1 to 4");
  expectBadGraph(graphWith(kRing), "g.xml:4: channel 0 has no tree");
  expectBadGraph(graphWith(kTree), "channel 0 has no ring");
  expectBadGraph(graphWith(std::string(kRing) + kRing), "a second ring in channel 0");
  expectBadGraph(graphWith(std::string(kTree) + kTree), "a second tree in channel 0");
  expectBadGraph(graphWith("", "0 0 1 0 0"), "g.xml:1: rank 4 is on host 0 of the file but on "
                                             "host 1 of this job");
  expectBadGraph("<graph version='1' channels='33' hosts=''/>", "not within 1 to 32");
  expectBadGraph("<graph version='1' hosts='0 0 1 0 1'/>", "graph without channels");
  expectBadGraph("<graph version='1' channels='2' hosts='0 0 1 0 1'></graph>",
                 "2 channels announced, 0 present");
  std::string two = graphText(2);
  two.replace(two.find("channels=\"2\""), 12, "channels=\"1\"");
  expectBadGraph(two, "more than the 1 channels announced");
}

TEST(GraphXml, RefusesTooManyNeighbours) {
  std::vector<uint64_t> hosts(7, 1);
  const char star[] = "<graph version='1' channels='1' hosts='0 0 0 0 0 0 0'><channel>"
                      "<tree parents='-1 0 0 0 0 0 0'/></channel></graph>";
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphParseXml(star, sizeof star - 1, "g.xml", hosts.data(), 7, &g),
            tuttiInvalidArgument);
  EXPECT_THAT(tuttiErrorText(), HasSubstr("rank 0 has 6 neighbours"));
}

/* Changes a text in a way that a parser may stumble over: bytes, spans, numbers, tokens. */
std::string mutate(std::string text, std::mt19937 &random) {
  static const char *const tokens[] = {"<node", "</node>", "<!DOCTYPE a [", "]>", "&#0;", "&amp;",
                                       "\"",    "-1",      "99999999999",   "<",  ">",    "]]>",
                                       "<?xml", "<!--",    "\xff\xfe",      "0x", "/>",   "-->"};
  for (int edits = 1 + random() % 4; edits > 0; edits--) {
    size_t at = random() % (text.size() + 1), length = random() % 40;
    switch (random() % 5) {
    case 0:
      if (at < text.size()) text[at] = static_cast<char>(random());
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(random() % (text.size() + 1), length));
      break;
    case 3:
      text.insert(at, tokens[random() % std::size(tokens)]);
      break;
    default:
      if (at < text.size() && text[at] >= '0' && text[at] <= '9')
        text[at] = static_cast<char>('0' + random() % 10);
    }
  }
  return text;
}

/* The same inputs in every run; a slow machine tries fewer of them. */
void fuzz(const std::vector<std::string> &seeds, tuttiResult_t (*parse)(const std::string &)) {
  std::mt19937 random(7);
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 20000 && std::chrono::steady_clock::now() < end; i++) {
    std::string text = mutate(seeds[i % seeds.size()], random);
    tuttiResult_t result = parse(text);
    ASSERT_TRUE(result == tuttiSuccess || result == tuttiInvalidArgument) << text;
    (result == tuttiSuccess ? accepted : refused)++;
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST(Fuzz, Topology) {
  fuzz({topologyText("two_sockets"), topologyText("no_pci_vm")}, parseTopology);
}

TEST(Fuzz, Graph) {
  fuzz({graphText(1), graphText(3)}, parseGraph);
}

std::string captured(const std::vector<uint64_t> &hosts, int channels) {
  tuttiGraph *g = nullptr;
  EXPECT_EQ(tuttiGraphCreate(hosts.data(), static_cast<int>(hosts.size()), nullptr, channels, &g),
            tuttiSuccess);
  char *text = nullptr;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  tuttiGraphPrint(g, out);
  fclose(out);
  tuttiGraphFree(g);
  std::string copy(text, size);
  free(text);
  return copy;
}

TEST(GraphPrint, RingsAndTrees) {
  EXPECT_EQ(captured({1, 1, 2}, 2), "3 ranks on 2 hosts, 2 channels\n"
                                    "Ring 00 : 0 1 2\n"
                                    "Ring 01 : 2 1 0\n"
                                    "Tree 00 : 2/0/1\n"
                                    "Tree 00 : 0/1/-1\n"
                                    "Tree 00 : -1/2/0\n"
                                    "Tree 01 : 1/0/-1\n"
                                    "Tree 01 : -1/1/0,2\n"
                                    "Tree 01 : 1/2/-1\n");
}

int occurrences(const std::string &text, const std::string &what) {
  int n = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    n++;
  return n;
}

/* The picture shows everything once: hosts, ranks and tree edges per panel, arcs per channel. */
TEST(GraphSvg, ShowsAllRanksAndEdges) {
  TempDir dir;
  std::string path = (dir.path() / "g.svg").string();
  for (int nranks : {1, 2, 10, 300}) {
    std::vector<uint64_t> hosts(nranks);
    for (int r = 0; r < nranks; r++)
      hosts[r] = r % 3;
    tuttiGraph *g = nullptr;
    ASSERT_EQ(tuttiGraphCreate(hosts.data(), nranks, nullptr, 4, &g), tuttiSuccess);
    ASSERT_EQ(tuttiGraphWriteSvg(g, path.c_str(), "--svg"), tuttiSuccess);
    std::string svg = slurp(path);
    int trees = nranks == 1 ? 1 : 2, panels = 1 + trees;
    EXPECT_EQ(occurrences(svg, "<circle"), panels * nranks);
    EXPECT_EQ(occurrences(svg, "class=\"host\""), panels * g->nhosts);
    EXPECT_EQ(occurrences(svg, "marker-end"), nranks == 1 ? 0 : 4 * nranks);
    EXPECT_EQ(occurrences(svg, "class=\"inside\"") + occurrences(svg, "class=\"between\""),
              trees * (nranks - 1));
    EXPECT_EQ(occurrences(svg, "nan"), 0);
    EXPECT_EQ(occurrences(svg, "inf"), 0);
    tuttiGraphFree(g);
  }
}

} // namespace
