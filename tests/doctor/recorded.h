/* A recording that a test changes before the doctor sees it. */
#ifndef TUTTI_TESTS_DOCTOR_RECORDED_H_
#define TUTTI_TESTS_DOCTOR_RECORDED_H_

#include <fnmatch.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "doctor/view.h"

/* A recording in the file system, in memory. */
class RecordingFile {
public:
  explicit RecordingFile(const std::string &text) : fd_(memfd_create("recording", MFD_CLOEXEC)) {
    EXPECT_EQ(write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
    path_ = "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }
  ~RecordingFile() { close(fd_); }
  RecordingFile(const RecordingFile &) = delete;
  const std::string &path() const { return path_; }

private:
  int fd_;
  std::string path_;
};

class Recorded {
public:
  explicit Recorded(const std::string &machine) {
    std::ifstream in(std::string(TUTTI_TEST_DATA) + "/" + machine + ".rec");
    EXPECT_TRUE(in) << "no machine " << machine;
    std::string dir, last;
    std::getline(in, head_);
    for (std::string line; std::getline(in, line);) {
      if (line.empty() || line[0] == '#') continue;
      if (line.rfind("at ", 0) == 0) {
        dir = line.substr(3);
      } else if (line[0] == '\t') {
        entries_[last] += "\n" + line;
      } else {
        size_t space = line.find(' ', 2);
        bool answer = line.rfind("? ", 0) == 0;
        if (!answer) space = line.find(' ');
        last = answer ? line.substr(0, line.find(" =")) : dir + "/" + line.substr(0, space);
        entries_[last] = answer ? line.substr(line.find(" =")) : line.substr(space);
      }
    }
  }

  /* Of files the path is a pattern in which * stands for any text; it must be there. */
  Recorded &file(const std::string &pattern, const std::string &text) {
    for (auto *entry : matching(pattern))
      *entry = " = " + text;
    return *this;
  }
  Recorded &link(const std::string &pattern, const std::string &target) {
    for (auto *entry : matching(pattern))
      *entry = " -> " + target;
    return *this;
  }
  Recorded &bytes(const std::string &pattern, const std::string &text) {
    for (auto *entry : matching(pattern))
      *entry = " : " + text;
    return *this;
  }
  Recorded &deny(const std::string &pattern) {
    for (auto *entry : matching(pattern))
      *entry = " ! 13";
    return *this;
  }
  Recorded &add(const std::string &path, const std::string &text) {
    EXPECT_EQ(entries_.count(path), 0u) << path;
    entries_[path] = " = " + text;
    return *this;
  }
  Recorded &addLink(const std::string &path, const std::string &target) {
    entries_[path] = " -> " + target;
    return *this;
  }
  Recorded &drop(const std::string &pattern) {
    EXPECT_FALSE(matching(pattern).empty());
    for (auto i = entries_.begin(); i != entries_.end();)
      i = matches(pattern, i->first) ? entries_.erase(i) : std::next(i);
    return *this;
  }
  Recorded &answer(const std::string &key, const std::string &value) {
    entries_["? " + key] = " = " + value;
    return *this;
  }
  Recorded &answers(const std::string &pattern, const std::string &value) {
    for (auto *entry : matching("? " + pattern))
      *entry = " = " + value;
    return *this;
  }
  Recorded &silent(const std::string &pattern) { return drop("? " + pattern); }

  std::string text() const {
    std::map<std::string, std::string> dirs;
    std::ostringstream out;
    out << head_ << "\n";
    for (const auto &[path, rest] : entries_) {
      size_t slash = path.rfind('/');
      if (path[0] == '?')
        out << path << rest << "\n";
      else
        dirs[path.substr(0, slash)] += path.substr(slash + 1) + rest + "\n";
    }
    for (const auto &[dir, lines] : dirs)
      out << "at " << dir << "\n" << lines;
    return out.str();
  }

private:
  static bool matches(const std::string &pattern, const std::string &path) {
    bool answer = pattern[0] == '?';
    return answer == (path[0] == '?') &&
           fnmatch(pattern.c_str() + answer, path.c_str() + answer, 0) == 0;
  }
  std::vector<std::string *> matching(const std::string &pattern) {
    std::vector<std::string *> found;
    for (auto &[path, rest] : entries_)
      if (matches(pattern, path)) found.push_back(&rest);
    EXPECT_FALSE(found.empty()) << "nothing recorded is " << pattern;
    return found;
  }

  std::string head_;
  std::map<std::string, std::string> entries_; /* by path, or "? key"; what stands behind it */
};

/* What the doctor says of a recording. */
class Examined {
public:
  explicit Examined(const Recorded &recorded) : file_(recorded.text()) {
    EXPECT_EQ(tuttiMachineOpen(&machine_, file_.path().c_str()), tuttiSuccess)
        << tuttiGetLastError(nullptr);
    EXPECT_EQ(tuttiViewMake(&machine_, view_.get()), tuttiSuccess) << tuttiGetLastError(nullptr);
    tuttiCheckAll(view_.get(), findings_.get());
  }
  ~Examined() {
    tuttiViewFree(view_.get());
    tuttiMachineClose(&machine_);
  }
  Examined(const Examined &) = delete;

  const tuttiMachine *machine() const { return &machine_; }
  const tuttiView *view() const { return view_.get(); }
  const tuttiFindings *findings() const { return findings_.get(); }
  /* Those of at least this severity. */
  std::vector<const tuttiFinding *> found(tuttiSeverity least) const {
    std::vector<const tuttiFinding *> list;
    for (int i = 0; i < findings_->n; i++)
      if (findings_->list[i].severity >= least) list.push_back(&findings_->list[i]);
    return list;
  }
  std::string text(tuttiSeverity least) const {
    std::string all;
    for (const tuttiFinding *f : found(least))
      all += std::string(tuttiSeverityNames[f->severity]) + " " + f->id + " " + f->subject + ": " +
             f->sentence + "\n";
    return all;
  }

private:
  RecordingFile file_;
  tuttiMachine machine_{};
  std::unique_ptr<tuttiView> view_ = std::make_unique<tuttiView>();
  std::unique_ptr<tuttiFindings> findings_ = std::make_unique<tuttiFindings>();
};

#endif
