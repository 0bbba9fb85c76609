/* test_video.c - what is written can be read back by the libraries that others read it with. */
#include "scratch.h"
#include "staged.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void latents_become_levels(void **state)
{
    (void)state;
    /* [3, 1, 1, 4]: 0.5 levels are ties and go to even; beyond the ends is clamped; NaN is black */
    const float latent[] = { -1.0f,     1.0f, 0.0f,  2.0f, -3.0f, INFINITY,
                             -INFINITY, NAN,  -0.9f, 0.5f, 1e-3f, -1e-3f };
    const uint8_t expected[] = { 0, 0, 13, 255, 255, 191, 128, 0, 128, 255, 0, 127 };
    clip c;
    mcsa_error error;
    assert_int_equal(clip_from_latent(&c, latent, 1, 1, 4, &error), MCSA_OK);
    assert_memory_equal(c.rgb, expected, sizeof expected);
    clip_free(&c);
}

static void corners_of_the_colour_cube(void **state)
{
    (void)state;
    /* The 8-bit values of BT.601 that every table of colour bars lists. */
    const uint8_t bars[][2][3] = {
        { { 0, 0, 0 }, { 16, 128, 128 } },     { { 255, 255, 255 }, { 235, 128, 128 } },
        { { 255, 0, 0 }, { 81, 90, 240 } },    { { 0, 255, 0 }, { 145, 54, 34 } },
        { { 0, 0, 255 }, { 41, 240, 110 } },   { { 255, 255, 0 }, { 210, 16, 146 } },
        { { 0, 255, 255 }, { 170, 166, 16 } }, { { 255, 0, 255 }, { 106, 202, 222 } },
    };
    for (size_t i = 0; i < sizeof bars / sizeof *bars; i++) {
        uint8_t ycbcr[3];
        clip_to_ycbcr(bars[i][0], ycbcr);
        assert_memory_equal(ycbcr, bars[i][1], 3);
    }
}

static void y4m_has_these_bytes(void **state)
{
    (void)state;
    uint8_t rgb[] = { 255, 0, 0, 0, 0, 0, 255, 255, 255, 0, 0, 255 }; /* [2, 1, 2, 3] */
    clip c = { 2, 1, 2, rgb };
    static const char expected[] = "YUV4MPEG2 W2 H1 F8:1 Ip A1:1 C444\n"
                                   "FRAME\n\x51\x10\x5a\x80\xf0\x80"
                                   "FRAME\n\xeb\x29\x80\xf0\x80\x6e";
    char bytes[200];
    mcsa_error error;
    assert_int_equal(clip_write_y4m(&c, "a.y4m", &error), MCSA_OK);
    FILE *stream = fopen("a.y4m", "rb");
    assert_non_null(stream);
    size_t count = fread(bytes, 1, sizeof bytes, stream);
    fclose(stream);
    assert_int_equal(count, sizeof expected - 1);
    assert_memory_equal(bytes, expected, count);
}

/* Every pixel of the sheet: a frame where one stands, white elsewhere. */
static void check_sheet(const clip *c, const png_image *image, const uint8_t *page)
{
    for (int y = 0; y < (int)image->height; y++) {
        for (int x = 0; x < (int)image->width; x++) {
            int column = x / (c->width + 2), row = y / (c->height + 2);
            int left = x % (c->width + 2) - 2, top = y % (c->height + 2) - 2, t = row * 8 + column;
            const uint8_t white[3] = { 255, 255, 255 }, *expected = white;
            if (left >= 0 && top >= 0 && column < 8 && t < c->frames)
                expected = clip_frame(c, t) + 3 * (top * c->width + left);
            assert_memory_equal(page + 3 * (y * (int)image->width + x), expected, 3);
        }
    }
}

static void png_is_a_sheet_of_all_frames(void **state)
{
    (void)state;
    const int cases[][3] = { { 10, 6, 5 }, { 3, 4, 7 }, { 8, 2, 2 }, { 1, 1, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clip c;
        int width, height;
        mcsa_error error;
        scratch_clip(&c, cases[i][0], cases[i][1], cases[i][2]);
        assert_int_equal(clip_write_png(&c, "a.png", &error), MCSA_OK);
        clip_sheet_size(&c, &width, &height);

        png_image image = { .version = PNG_IMAGE_VERSION };
        assert_true(png_image_begin_read_from_file(&image, "a.png"));
        assert_int_equal(image.width, width);
        assert_int_equal(image.height, height);
        image.format = PNG_FORMAT_RGB;
        uint8_t *page = malloc(PNG_IMAGE_SIZE(image));
        assert_non_null(page);
        assert_true(png_image_finish_read(&image, NULL, page, 0, NULL));
        check_sheet(&c, &image, page);
        free(page);
        clip_free(&c);
    }
}

typedef struct seen {
    int frames, width, height;
    double squares; /* of luma errors against the clip */
    double samples;
    double seconds;
} seen;

/* Luma of a decoded frame against that of the clip, the last row and column repeated where the size was
 * odd. */
static void compare_luma(seen *s, const clip *c, const AVFrame *frame)
{
    const uint8_t *rgb = clip_frame(c, s->frames);
    for (int y = 0; y < frame->height; y++) {
        for (int x = 0; x < frame->width; x++) {
            int row = y < c->height ? y : c->height - 1, column = x < c->width ? x : c->width - 1;
            uint8_t ycbcr[3];
            clip_to_ycbcr(rgb + 3 * (row * c->width + column), ycbcr);
            double error = frame->data[0][y * frame->linesize[0] + x] - ycbcr[0];
            s->squares += error * error;
            s->samples += 1.0;
        }
    }
    s->frames++;
    s->width = frame->width;
    s->height = frame->height;
}

static void drain(seen *s, const clip *c, AVCodecContext *codec, AVFrame *frame)
{
    while (avcodec_receive_frame(codec, frame) == 0) {
        assert_true(s->frames < c->frames);
        assert_int_equal(frame->format, AV_PIX_FMT_YUV420P);
        compare_luma(s, c, frame);
    }
}

static seen decode(const char *path, const clip *c)
{
    seen s = { 0 };
    AVFormatContext *container = NULL;
    assert_int_equal(avformat_open_input(&container, path, NULL, NULL), 0);
    assert_true(avformat_find_stream_info(container, NULL) >= 0);
    assert_int_equal(container->nb_streams, 1);
    const AVCodecParameters *parameters = container->streams[0]->codecpar;
    s.seconds = (double)container->duration / AV_TIME_BASE;
    const AVCodec *decoder = avcodec_find_decoder(parameters->codec_id);
    AVCodecContext *codec = avcodec_alloc_context3(decoder);
    AVFrame *frame = av_frame_alloc();
    AVPacket *packet = av_packet_alloc();
    assert_true(codec && frame && packet);
    assert_true(avcodec_parameters_to_context(codec, parameters) >= 0);
    assert_int_equal(avcodec_open2(codec, decoder, NULL), 0);
    while (av_read_frame(container, packet) >= 0) {
        assert_int_equal(avcodec_send_packet(codec, packet), 0);
        av_packet_unref(packet);
        drain(&s, c, codec, frame);
    }
    assert_int_equal(avcodec_send_packet(codec, NULL), 0);
    drain(&s, c, codec, frame);
    av_packet_free(&packet);
    av_frame_free(&frame);
    avcodec_free_context(&codec);
    avformat_close_input(&container);
    return s;
}

static void mp4_plays_back_every_frame(void **state)
{
    (void)state;
    const int cases[][3] = { { 16, 64, 64 }, { 5, 32, 48 }, { 3, 17, 33 }, { 1, 64, 64 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clip c;
        mcsa_error error;
        scratch_clip(&c, cases[i][0], cases[i][1], cases[i][2]);
        if (clip_write_mp4(&c, "a.mp4", &error) != MCSA_OK) fail_msg("%s", error.text);
        seen s = decode("a.mp4", &c);
        assert_int_equal(s.frames, c.frames);
        assert_int_equal(s.width, (c.width + 1) / 2 * 2);
        assert_int_equal(s.height, (c.height + 1) / 2 * 2);
        assert_true(fabs(s.seconds - (double)c.frames / CLIP_FRAMES_PER_SECOND) < 0.01);
        double psnr = 10.0 * log10(255.0 * 255.0 * s.samples / s.squares);
        print_message("%d x %d x %d: luma %.1f dB\n", c.frames, c.height, c.width, psnr);
        assert_true(psnr > 40.0); /* where eyes stop seeing a difference */
        clip_free(&c);
    }
}

/* Atom names in order of appearance: the index must come before the pictures. */
static void mp4_starts_with_its_index(void **state)
{
    (void)state;
    clip c;
    mcsa_error error;
    scratch_clip(&c, 4, 32, 32);
    assert_int_equal(clip_write_mp4(&c, "a.mp4", &error), MCSA_OK);
    FILE *stream = fopen("a.mp4", "rb");
    assert_non_null(stream);
    uint8_t head[8];
    int index_seen = 0, pictures_seen = 0;
    while (fread(head, 1, 8, stream) == 8) {
        long size = (long)head[0] << 24 | (long)head[1] << 16 | (long)head[2] << 8 | (long)head[3];
        if (memcmp(head + 4, "moov", 4) == 0) {
            assert_false(pictures_seen);
            index_seen = 1;
        }
        if (memcmp(head + 4, "mdat", 4) == 0) pictures_seen = 1;
        assert_true(size >= 8);
        fseek(stream, size - 8, SEEK_CUR);
    }
    fclose(stream);
    assert_true(index_seen && pictures_seen);
    clip_free(&c);
}

static void failures_leave_no_file(void **state)
{
    (void)state;
    clip c;
    mcsa_error error;
    scratch_clip(&c, 2, 8, 8);
    int before = scratch_files();
    assert_int_equal(clip_write_png(&c, "nowhere/a.png", &error), MCSA_EIO);
    assert_string_equal(error.text, "cannot write nowhere/a.png: No such file or directory");
    assert_int_equal(clip_write_y4m(&c, "nowhere/a.y4m", &error), MCSA_EIO);
    assert_int_equal(clip_write_mp4(&c, "nowhere/a.mp4", &error), MCSA_EIO);
    assert_int_equal(scratch_files(), before);
    clip_free(&c);
}

static void a_staged_file_replaces_the_old_one_only_when_whole(void **state)
{
    (void)state;
    staged file;
    FILE *stream;
    mcsa_error error;
    char text[8] = "";
    assert_int_equal(staged_name(&file, "kept.txt", &error), MCSA_OK);
    const char *const versions[] = { "one", "two" };
    const mcsa_status outcomes[] = { MCSA_OK, MCSA_ECANCELED };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(staged_open(&file, &stream, &error), MCSA_OK);
        fputs(versions[i], stream);
        assert_int_equal(staged_close(&file, stream, outcomes[i], &error), outcomes[i]);
    }
    stream = fopen("kept.txt", "r");
    assert_non_null(stream);
    assert_non_null(fgets(text, sizeof text, stream));
    fclose(stream);
    assert_string_equal(text, "one");
    assert_null(fopen(file.part, "r"));
}

static void places_are_checked_before_the_work(void **state)
{
    (void)state;
    mcsa_error error;
    assert_int_equal(staged_check("new.txt", &error), MCSA_OK);
    assert_int_equal(staged_check("/new.txt/x", &error), MCSA_EIO);
    assert_int_equal(staged_check(".", &error), MCSA_EIO);
    assert_string_equal(error.text, "cannot write .: it is a directory");
    char name[5000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_int_equal(staged_check(name, &error), MCSA_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_become_levels),
        cmocka_unit_test(corners_of_the_colour_cube),
        cmocka_unit_test(y4m_has_these_bytes),
        cmocka_unit_test(png_is_a_sheet_of_all_frames),
        cmocka_unit_test(mp4_plays_back_every_frame),
        cmocka_unit_test(mp4_starts_with_its_index),
        cmocka_unit_test(failures_leave_no_file),
        cmocka_unit_test(a_staged_file_replaces_the_old_one_only_when_whole),
        cmocka_unit_test(places_are_checked_before_the_work),
    };
    return cmocka_run_group_tests(tests, scratch_enter, scratch_leave);
}
