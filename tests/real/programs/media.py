"""Pictures, films and office documents, made from nothing and compared byte for byte where the program can do that."""

from random import Random

from registry import program

FILM = "testsrc2=size=640x360:rate=25:duration=8"
SOUND = "sine=frequency=440:beep_factor=4:sample_rate=44100:duration=8"
EXACT = ("-flags", "+bitexact", "-fflags", "+bitexact", "-map_metadata", "-1")


@program("ffmpeg", does="8 s of a test picture through H.264, AAC, MPEG-4, FFV1, FLAC, Vorbis and filters, bit-exact",
         version=("ffmpeg", "-version"), needs={"ffmpeg": "ffmpeg"})  # fmt: skip
def ffmpeg(session):
    def run(*argv):
        session.run("ffmpeg", "-nostdin", "-v", "error", "-y", "-threads", "2", *argv)

    run("-f", "lavfi", "-i", FILM, "-f", "lavfi", "-i", SOUND, "-c:v", "libx264", "-preset", "veryfast",
        "-threads", "2", "-c:a", "aac", *EXACT, "film.mkv")  # fmt: skip
    session.record_file("film.mkv")
    run("-i", "film.mkv",
        "-vf", "scale=480:270,rotate=0.3,unsharp,eq=contrast=1.2,hue=h=40", "-af", "aecho,atempo=1.25",
        "-c:v", "mpeg4", "-q:v", "4", "-c:a", "flac", *EXACT, "filtered.mkv")  # fmt: skip
    session.record_file("filtered.mkv")
    run(
        "-i",
        "film.mkv",
        "-c:v",
        "ffv1",
        "-level",
        "3",
        "-slices",
        "4",
        "-threads",
        "2",
        "-c:a",
        "libvorbis",
        *EXACT,
        "lossless.mkv",
    )
    for name in ("film", "filtered", "lossless"):
        run("-i", f"{name}.mkv", *EXACT, "-f", "framemd5", f"{name}.md5")
        session.record_file(f"{name}.md5")
    run("-i", "film.mkv", "-vf", "fps=2,split[a][b];[a]palettegen[p];[b][p]paletteuse", *EXACT, "film.gif")
    session.record_file("film.gif")


@program("imagemagick", does="resizes, blurs, distortions, colours, a montage; pictures in five formats",
         version=("convert", "-version"), needs={"/usr/bin/convert": "imagemagick"})  # fmt: skip
def imagemagick(session):
    def run(*argv):
        session.run("convert", "-limit", "thread", "2", *argv)

    source = "source.miff"
    run("-size", "1600x1100", "gradient:navy-orange",
        "(", "-size", "1600x1100", "pattern:checkerboard", "-blur", "0x3", ")",
        "-compose", "overlay", "-composite", "-swirl", "140", source)  # fmt: skip
    pictures = {
        "resized.png": ("-filter", "Lanczos", "-resize", "61%", "-unsharp", "0x2"),
        "distorted.png": ("-distort", "Barrel", "0.1 -0.2 0.0", "-virtual-pixel", "mirror", "-resize", "800x"),
        "blurred.png": ("-resize", "50%", "-gaussian-blur", "0x6", "-motion-blur", "0x12+45"),
        "compressed.jpg": ("-colorspace", "YCbCr", "-quality", "83"),
        "layers.tif": ("-resize", "40%", "-compress", "lzw", "(", "+clone", "-negate", ")"),
        "palette.gif": ("-resize", "30%", "-dither", "FloydSteinberg", "-colors", "64"),
        "edges.png": ("-resize", "50%", "-canny", "0x1+10%+30%", "-morphology", "Dilate", "Disk:3"),
        "computed.png": ("-resize", "200x", "-fx", "sin(u*9)*0.5+u.p{i/2,j}*0.3+hypot(i,j)/w/9"),
    }
    for name, operations in pictures.items():
        run(source, *operations, name)
        # What a picture holds, without what its file says about dates.
        session.run("identify", "-format", "%f %wx%h %# %[mean]\\n", name)
    session.run("montage", "-geometry", "200x150+4+4", "-tile", "4x", *pictures, "montage.miff", compare=False)
    session.run("identify", "-format", "%wx%h %#\\n", "montage.miff")
    session.run("compare", "-metric", "AE", "resized.png", "resized.png", "null:")


def report_page(paragraphs):
    random = Random(5)
    words = "heap span slab block thread cache page fault queue packet region class limit table".split()
    yield "<html><head><title>Report</title></head><body><h1>Report</h1>"
    for n in range(paragraphs):
        text = " ".join(random.choice(words) for _ in range(60))
        yield f"<h2>Part {n}</h2><p>{text}</p><p><b>{text[:80]}</b> <i>{text[80:160]}</i></p>"
        if n % 5 == 0:
            rows = "".join(f"<tr><td>{n}</td><td>{random.randrange(10**6)}</td><td>{word}</td></tr>" for word in words)
            yield f"<table border=1>{rows}</table>"
    yield "</body></html>"


@program("libreoffice", does="HTML to ODT, DOCX and PDF, a sheet of 20,000 rows to ODS, XLSX and back",
         version=("soffice", "--version"),
         needs={"soffice": "libreoffice-writer-nogui",
                "/usr/lib/libreoffice/program/libsclo.so": "libreoffice-calc-nogui",
                "pdftotext": "poppler-utils"})  # fmt: skip
def libreoffice(session):
    def convert(source, target, *options):
        profile = f"-env:UserInstallation=file://{session.directory}/profile"
        session.run(
            "soffice", profile, "--headless", "--norestore", *options, "--convert-to", target, source, compare=False
        )

    random = Random(6)
    session.write("report.html", "\n".join(report_page(80)))
    rows = (f"{n},{random.randrange(10**6)},{random.random():.6f},text {n % 97},=B{n}*2+C{n}" for n in range(1, 20001))
    session.write("sheet.csv", "\n".join(rows) + "\n")
    convert("report.html", "odt", "--infilter=HTML (StarWriter)")
    convert("report.odt", "docx")
    convert("report.docx", "pdf")
    convert("sheet.csv", "ods")
    convert("sheet.ods", "xlsx")
    convert("sheet.xlsx", "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true,false")
    session.record_file("sheet.csv")
    # A PDF holds its date and a random number: its text is compared.
    session.run("pdftotext", "-layout", "report.pdf", "report.txt")
    session.record_file("report.txt")
